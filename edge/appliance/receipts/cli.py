"""`waypost receipt`: verify what a hub has signed about a message."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click
import msgspec

from bridge.landing_receipt import LandingReceipt, LandingStatement, ReceiptError, ReceiptOutcome, read_receipt
from bridge.limits import RECEIPT_DOCUMENT_BYTES_MAX
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import say
from edge.output.text import line

if TYPE_CHECKING:
    from cryptography import x509


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def receipt() -> None:
    """Verify receipts of landed messages."""


@receipt.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--authority",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="PEM",
    help="Certificate of the hub's authority: authority/ca.pem in the data directory of the hub.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Data directory of an enrolled gateway, which has that certificate.",
)
@json_option("receipt")
def verify(file: IO[bytes], authority: Path | None, data: Path | None, as_json: JsonOutput | None) -> None:
    """Verify a receipt.

    \b
    The hub has signed that the message is in the lake, or was dropped. FILE has the body of a message from
    landing-receipt/DEVICE; - reads it from stdin. Nothing is asked over the network, and a receipt never
    gets out of date.

    \b
      waypost receipt verify receipt.json --authority hub/authority/ca.pem
      waypost receipt verify receipt.json --data ./gw1

    Exit code 4: the receipt proves nothing.
    """
    from edge.appliance.receipts.verification import verify as verify_receipt

    trusted = _authority(authority, data)
    try:
        found = read_receipt(file.read(RECEIPT_DOCUMENT_BYTES_MAX + 1))
        statement = verify_receipt(found, trusted)
    except ReceiptError as error:
        hint = "the message may not be in the lake: do not delete the device's copy because of this receipt"
        raise CommandError(f"{file.name}: {error}", hint=hint, code=Exit.INTEGRITY, error="receipt-not-valid") from None
    if as_json:
        as_json.show([{**msgspec.to_builtins(statement), "sequence": found.sequence, "reason": found.reason}])
        return
    say("\n".join(_lines(found, statement)))


def _authority(authority: Path | None, data: Path | None) -> x509.Certificate:
    """Read the certificate of the hub's authority. Raises CommandError."""
    from cryptography import x509

    from edge.appliance.identity.files import GatewayIdentity

    if authority is None and data is None:
        hint = "the data directory of the hub has it: authority/ca.pem"
        raise CommandError(
            "give the certificate of the hub's authority by --authority or --data",
            hint=hint,
            code=Exit.USAGE,
            error="no-authority",
        )
    try:
        text = authority.read_text("ascii") if authority is not None else GatewayIdentity(data or Path()).authority()
        return x509.load_pem_x509_certificate(text.encode("ascii"))
    except (OSError, ValueError) as error:
        where = authority or data
        raise CommandError(
            f"{where} has no certificate of an authority: {error}", code=Exit.USAGE, error="no-authority"
        ) from None


def _lines(found: LandingReceipt, statement: LandingStatement) -> list[str]:
    """Return what the receipt proves, in words."""
    at = datetime.datetime.fromtimestamp(statement.stated_at / 1e6, datetime.UTC)
    if statement.outcome is ReceiptOutcome.LANDED:
        what = f"in the lake: table {line(statement.table)}, version {statement.version} or earlier"
    else:
        what = f"dropped ({line(found.reason)}): in the loss ledger of the lake"
    return [
        f"message {found.sequence} of {line(found.address)} is {what}",
        f"gateway {line(statement.gateway)} of tenant {line(statement.tenant)}, epoch {line(statement.epoch)}",
        f"stated for messages {statement.first} to {statement.last} at {at:%Y-%m-%d %H:%M:%S} UTC; signature valid",
    ]
