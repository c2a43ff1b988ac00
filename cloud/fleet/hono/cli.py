"""`waypost hub device import`: the device registry of Eclipse Hono into that of a running hub."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click

from cloud.fleet.hono.limits import PROGRESS_INTERVAL_S
from cloud.fleet.place import console_option
from edge.output.amounts import counted, number
from edge.output.errors import CommandError, Exit
from edge.output.listing import FORMS, Listing, print_listing
from edge.output.terminal import say
from edge.remote.client import ConsoleClient

NOTES: Final = Listing(
    "registry-import", "device", ("outcome", "tenant", "device", "setting", "number", "words"), (), "nothing to read"
)


@click.command("import")
@console_option
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@click.option("--tenant", default="", help="Tenant of devices in pages of Hono's /v1/devices, which do not name it.")
@click.option(
    "--owner", default="", help="Tenant of the hub that new tenants as DEFAULT_TENANT belong to.  [default: default]"
)
@click.option("--gateway", "gateways", multiple=True, help="Gateway at which the devices may appear; repeatable.")
@click.option("--selector", default="", metavar="KEY=VALUE", help="Gateways at which they may appear, by their labels.")
@click.option(
    "--add-missing",
    is_flag=True,
    help="Add devices that are missing in a tenant that the hub had before, where they may have been removed.",
)
@click.option(
    "--plain-keys", is_flag=True, help="Take pre-shared keys of an export of MongoDB: Hono did not encrypt them."
)
@click.option("--dry-run", is_flag=True, help="Change nothing, and print the report.")
@click.option("-o", "--output", "form", type=click.Choice(FORMS), default="table", help="Form of the report.")
@click.option("--json", "form", flag_value="json", help="The same as -o json: items of kind `registry-import`.")
def import_registry(
    client: ConsoleClient,
    files: Sequence[Path],
    tenant: str,
    owner: str,
    gateways: Sequence[str],
    selector: str,
    add_missing: bool,
    plain_keys: bool,
    dry_run: bool,
    form: str,
) -> None:
    """Import the devices of Eclipse Hono.

    FILE is a file of Hono's registry (tenants.json, device-identities.json, credentials.json), an export of its
    MongoDB, or pages of its management API. Give all files at once. What is missing at the hub is added; nothing there
    is changed or removed. A later run gives nothing back that may have been removed or revoked at the hub; after a run
    that did not end, --add-missing goes on. The report has everything that the hub refuses, and every field that has no
    counterpart:

    \b
      waypost hub device import tenants.json device-identities.json credentials.json --dry-run
      waypost hub device import tenants.json device-identities.json credentials.json --gateway plant-1
    """
    from cloud.fleet.hono.documents import GatewayChoice
    from cloud.fleet.hono.importer import HonoImporter
    from cloud.fleet.hono.plan import HonoImportPlan
    from cloud.fleet.hono.records import HonoFileError
    from cloud.fleet.hono.report import TO_READ, RegistryOutcome, RegistryReport
    from cloud.fleet.hono.source import read_registry
    from cloud.hub.devices.documents import InvalidDocument
    from cloud.hub.peers import tenant_fault

    choice = GatewayChoice(tuple(gateways), selector)
    try:
        choice.check()
    except InvalidDocument as why:
        raise CommandError(str(why), error="invalid-value", code=Exit.USAGE) from None
    if owner and (fault := tenant_fault(owner)):
        raise CommandError(f"--owner: {fault}", error="invalid-value", code=Exit.USAGE)
    try:
        registry = read_registry(files, tenant)
    except HonoFileError as why:
        hint = "give whole files, as Hono or mongoexport has written them; for pages of devices: --tenant NAME"
        raise CommandError(str(why), hint, error="file-not-accessible", code=Exit.USAGE) from None
    report, failure = RegistryReport(), None
    plan = HonoImportPlan(owner, choice, add_missing, plain_keys, dry_run)
    with client.keeping() as kept:
        try:
            HonoImporter(kept, report, plan).run(registry, _progress(registry.device_count))
        except CommandError as why:
            failure = why
    rows, counts = [each.row for each in report.notes if each.outcome in TO_READ], report.count_document()
    print_listing(NOTES, rows, form, counts=counts, dry_run=dry_run, complete=failure is None)
    if form == "table":
        _conclude(counts, dry_run=dry_run)
    if failure is not None:
        what = f"the import is not complete: {failure}"
        hint = f"{failure.hint}\nrun it again with --add-missing: it goes on where it ended"
        raise CommandError(what, hint, error=failure.error, code=failure.exit_code)
    if refused := sum(each.outcome is RegistryOutcome.REFUSED for each in report.notes):
        hint = "the report says why for each; correct them, and run it again: the others are not imported twice"
        raise CommandError(f"the hub refuses {counted(refused, 'entry', 'entries')}", hint, error="import-refused")


def _progress(count: int) -> Callable[[int], None]:
    """Return a function that prints the progress now and then, on standard error."""
    last = time.monotonic()

    def tell(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_INTERVAL_S:
            last = now
            say(f"{number(done)} of {counted(count, 'device')}", err=True)

    return tell


def _conclude(counts: dict[str, dict[str, int]], *, dry_run: bool) -> None:
    for what, found in counts.items():
        words = ", ".join(f"{number(count)} {outcome}" for outcome, count in found.items() if count) or "none"
        say(f"{what}: {words}")
    if dry_run:
        say("dry run: nothing was changed")
