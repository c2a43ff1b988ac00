"""`waypost artefact`: software for devices, signed by its maker, and stored at a hub.

Making a key and signing need no hub. The private key stays on the maker's machine.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cloud.fleet.artefact_store import open_artefacts
from cloud.fleet.audited import audited, subject_of
from cloud.fleet.place import HubPlace, hub_options
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.password import read_password
from edge.output.terminal import say
from edge.output.times import moment_us

if TYPE_CHECKING:
    from bridge.artefacts.keys import MakerPrivateKey, MakerPublicKey
    from bridge.artefacts.manifest import ArtefactManifest

KEY_MODE: Final = 0o600
FILE_MODE: Final = 0o644
ALGORITHMS: Final = ("ed25519", "es256")
KINDS: Final = ("firmware", "configuration", "model")
password_option = click.option(
    "--password-stdin",
    is_flag=True,
    help="The key has a password: read it from standard input, one line, or a prompt on a terminal.",
)
image_argument = click.argument("image", type=click.Path(path_type=Path, exists=True, dir_okay=False))


@click.group()
def artefact() -> None:
    """Sign and upload software for devices.

    An artefact is an image with a signed manifest: kind, name, version, boards, size and checksum.
    """


@artefact.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File of the private key, as maker.pem; the public one becomes maker.pub.pem.",
)
@click.option(
    "--algorithm",
    type=click.Choice(ALGORITHMS),
    default=ALGORITHMS[0],
    show_default=True,
    help="Ed25519, or ECDSA with P-256 (es256) for devices whose hardware verifies it.",
)
@password_option
@json_option("artefact-key")
def keygen(out: Path, algorithm: str, password_stdin: bool, as_json: JsonOutput | None) -> None:
    """Make the key of a maker.

    Keep the private key off the hub, with a copy in a safe place: what is lost cannot sign the next version.
    """
    from bridge.artefacts.keys import ArtefactAlgorithm, MakerPrivateKey

    public_file = out.with_name(f"{out.stem}.pub.pem")
    for file in (out, public_file):
        if file.exists():
            raise CommandError(f"{file} exists", "choose another name", error="file-exists", code=Exit.USAGE)
    key = MakerPrivateKey.generate(ArtefactAlgorithm(algorithm))
    with _explained():
        _write_new(out, key.pem(_password(password_stdin)), KEY_MODE)
        _write_new(public_file, key.public.pem.encode(), FILE_MODE)
    if as_json:
        as_json.show([{"id": key.public.id, "private": str(out), "public": str(public_file)}])
        return
    say(f"key {key.public.id}")
    say(f"{out}: private, for `waypost artefact sign`; keep it secret, and a copy of it")
    say(f"{public_file}: public, for hubs and devices")


@artefact.command()
@click.option(
    "--key",
    "key_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="File of the private key.",
)
@click.option("--kind", type=click.Choice(KINDS), default=KINDS[0], show_default=True, help="What the image is.")
@click.option("--name", required=True, help="Name of the artefact, the same for all its versions.")
@click.option("--version", required=True, help="Version of the image.")
@click.option(
    "--sequence",
    type=click.IntRange(min=1),
    required=True,
    help="Number that rises with every version: a lower one is refused as a downgrade.",
)
@click.option("--board", "boards", multiple=True, required=True, help="Board on which it runs; repeatable.")
@click.option(
    "--from",
    "from_versions",
    multiple=True,
    metavar="VERSION",
    help="Version over which it may be installed; repeatable.  [default: any]",
)
@click.option("--not-before", metavar="TIME", help="Time from which it is valid, as 2026-12-01T00:00:00Z.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Signed manifest.  [default: IMAGE.cose]")
@password_option
@image_argument
@json_option("artefact")
def sign(
    key_file: Path,
    kind: str,
    name: str,
    version: str,
    sequence: int,
    boards: Sequence[str],
    from_versions: Sequence[str],
    not_before: str | None,
    out: Path | None,
    password_stdin: bool,
    image: Path,
    as_json: JsonOutput | None,
) -> None:
    """Sign an image.

    The signed manifest (COSE_Sign1) is written next to it.
    """
    import msgspec

    from bridge.artefacts.envelope import seal
    from bridge.artefacts.manifest import ArtefactManifest, encode_manifest

    made = out or image.with_name(f"{image.name}.cose")
    since = None if not_before is None else _seconds(not_before)
    with _explained():
        if made.exists():
            raise CommandError(f"{made} exists", "give --out, or remove it", error="file-exists", code=Exit.USAGE)
        key = _private_key(key_file, password_stdin)
        with image.open("rb") as source:
            digest = hashlib.file_digest(source, "sha256").digest()
        document = {
            "kind": kind,
            "name": name,
            "version": version,
            "sequence": sequence,
            "boards": boards,
            "from_versions": from_versions,
            "size": image.stat().st_size,
            "sha256": digest,
            "not_before": since,
        }
        try:
            manifest = msgspec.convert(document, ArtefactManifest)
        except msgspec.ValidationError as error:
            raise CommandError(
                f"the manifest is not allowed: {error}", error="invalid-value", code=Exit.USAGE
            ) from None
        _write_new(made, seal(encode_manifest(manifest), key), FILE_MODE)
    if as_json:
        as_json.show([{**shown(manifest), "key": key.public.id, "file": str(made)}])
        return
    say(f"{made}: {manifest.label}, {manifest.size} bytes, signed with key {key.public.id}")


@artefact.command()
@click.option(
    "--key",
    "key_files",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    required=True,
    help="File of a trusted public key; repeatable.",
)
@click.option("--board", help="Board it has to be for.")
@click.option("--installed", metavar="VERSION", help="Version it has to be installable over.")
@click.argument("manifest", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@image_argument
@json_option("artefact")
def verify(
    key_files: Sequence[Path],
    board: str | None,
    installed: str | None,
    manifest: Path,
    image: Path,
    as_json: JsonOutput | None,
) -> None:
    """Verify an image and its signed manifest."""
    import time

    from bridge.artefacts.limits import ENVELOPE_BYTES_MAX
    from bridge.artefacts.verification import check_board, check_installed, verify_image, verify_manifest

    with _explained():
        keys = [_public_key(each) for each in key_files]
        with manifest.open("rb") as source:
            found = verify_manifest(source.read(ENVELOPE_BYTES_MAX + 1), keys, time.time())
        if board is not None:
            check_board(found, board)
        if installed is not None:
            check_installed(found, installed)
        with image.open("rb") as content:
            verify_image(found, content)
    if as_json:
        as_json.show([shown(found)])
        return
    say(f"{found.label}: signature and checksum are correct")
    say(f"{found.kind.value}, sequence {found.sequence}, for {', '.join(found.boards)}")


def shown(manifest: ArtefactManifest) -> dict[str, object]:
    """Return the fields of a manifest for people and programs."""
    since = manifest.not_before
    return {
        "kind": manifest.kind.value,
        "name": manifest.name,
        "version": manifest.version,
        "sequence": manifest.sequence,
        "boards": list(manifest.boards),
        "from_versions": list(manifest.from_versions),
        "size": manifest.size,
        "sha256": manifest.digest,
        "not_before": None if since is None else datetime.datetime.fromtimestamp(since, datetime.UTC).isoformat(),
    }


def _private_key(file: Path, password_stdin: bool) -> MakerPrivateKey:
    from bridge.artefacts.keys import MakerPrivateKey
    from bridge.artefacts.limits import KEY_FILE_BYTES_MAX

    with file.open("rb") as source:
        return MakerPrivateKey.parse(source.read(KEY_FILE_BYTES_MAX), _password(password_stdin))


def _public_key(file: Path) -> MakerPublicKey:
    from bridge.artefacts.keys import MakerPublicKey
    from bridge.artefacts.limits import KEY_FILE_BYTES_MAX

    with file.open("rb") as source:
        return MakerPublicKey.parse(source.read(KEY_FILE_BYTES_MAX).decode("ascii", errors="replace"))


def _password(wanted: bool) -> bytes | None:
    if not wanted:
        return None
    password = read_password().encode()
    if not password:
        raise CommandError("the password is empty", "give one line of text", error="invalid-value", code=Exit.USAGE)
    return password


def _seconds(text: str) -> int:
    """Return a time with its zone in UTC seconds. Raises click.BadParameter."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise click.BadParameter(f'"{text}" is not a time; expected for example 2026-12-01T00:00:00Z')
    return int(found.timestamp())


def _write_new(file: Path, content: bytes, mode: int) -> None:
    """Write a file that must not exist, durable on return; remove it when that fails. Raises OSError."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
    except BaseException:
        file.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn errors of files, keys and artefacts into errors of the command."""
    from bridge.artefacts.faults import ArtefactRefused
    from bridge.artefacts.keys import InvalidKey

    try:
        yield
    except ArtefactRefused as refused:
        raise CommandError(
            str(refused), f"reason: {refused.fault.value}", error="artefact-refused", code=Exit.INTEGRITY
        ) from None
    except InvalidKey as error:
        raise CommandError(str(error), error="invalid-artefact-key", code=Exit.USAGE) from None
    except OSError as error:
        raise CommandError(
            f"{error.filename or 'the file'}: {error.strerror}", error="file-not-accessible", code=Exit.USAGE
        ) from None


# --- at a hub -------------------------------------------------------------------------------------------------------

ARTEFACTS: Final = Listing(
    "artefact",
    "name",
    ("name", "version", "sequence", "kind", "state", "size", "boards"),
    ("sha256", "key", "added_at", "added_by"),
    empty="no artefact",
)
REPORTS: Final = Listing(
    "artefact-report",
    "device",
    ("device", "artefact", "version", "state", "reported_at", "reason"),
    ("gateway", "tenant"),
    empty="no report",
)
STATES: Final = ("downloading", "verified", "installed", "healthy", "rolled-back")
KEYS: Final = Listing("artefact-key", "id", ("id", "label", "added_at"), ("added_by",), empty="no trusted key")
tenant_option = click.option(
    "--tenant", default="", show_default="default; over HTTP the user's own", help="Tenant of the artefact."
)


@artefact.command()
@hub_options
@tenant_option
@click.option(
    "--manifest",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Signed manifest.  [default: IMAGE.cose]",
)
@image_argument
@json_option("artefact")
@audited("artefact.create")
def upload(hub: HubPlace, tenant: str, manifest: Path | None, image: Path, as_json: JsonOutput | None) -> None:
    """Upload an artefact to a hub.

    The hub verifies signature and checksum before it serves the artefact. Repeat the command after an interruption: it
    sends the missing parts.
    """
    from bridge.artefacts.limits import ENVELOPE_BYTES_MAX

    signed = manifest or image.with_name(f"{image.name}.cose")
    with _explained(), open_artefacts(hub, tenant) as store:
        with signed.open("rb") as source:
            found = store.add(source.read(ENVELOPE_BYTES_MAX + 1))
        name, version = found["artefact"]["name"], found["artefact"]["version"]
        subject_of(f"{name} {version}")
        with image.open("rb") as content:
            for number in found["missing"]:
                content.seek(number * found["part_bytes"])
                store.put(name, version, number, content.read(found["part_bytes"]))
        done = store.complete(name, version)
    if as_json:
        as_json.show([done])
        return
    say(f"{name} {version}: stored, {done['size']} bytes, of which {len(found['missing'])} parts were sent")


@artefact.command("list")
@hub_options
@tenant_option
@click.option("--name", default="", show_default="all", help="Only artefacts of this name.")
@output_option("artefact")
def list_artefacts(hub: HubPlace, tenant: str, name: str, form: str) -> None:
    """List the artefacts of a hub."""
    with _explained(), open_artefacts(hub, tenant) as store:
        rows = [{**each, "boards": ", ".join(each["boards"])} for each in store.find(name)]
    print_listing(ARTEFACTS, rows, form)


@artefact.command()
@hub_options
@tenant_option
@click.argument("name")
@click.argument("version")
@json_option("artefact")
def show(hub: HubPlace, tenant: str, name: str, version: str, as_json: JsonOutput | None) -> None:
    """Show an artefact of a hub."""
    with _explained(), open_artefacts(hub, tenant) as store:
        found = store.get(name, version)
    document = {**found["artefact"], "missing_parts": len(found["missing"])}
    if as_json:
        as_json.show([document])
        return
    for key, value in document.items():
        say(f"{key}: {', '.join(value) if isinstance(value, list) else value}")


@artefact.command()
@hub_options
@tenant_option
@click.argument("name")
@click.argument("version")
@audited("artefact.remove", "name", "version")
def remove(hub: HubPlace, tenant: str, name: str, version: str) -> None:
    """Remove an artefact from a hub.

    Its sequence stays known, so that an older one cannot take its place.
    """
    with _explained(), open_artefacts(hub, tenant) as store:
        store.remove(name, version)
    say(f"{name} {version}: removed")


@artefact.command()
@hub_options
@tenant_option
@click.option("--device", default="", help="Only of this device.")
@click.option("--state", type=click.Choice(STATES), help="Only with this state.")
@click.argument("name", required=False, default="")
@click.argument("version", required=False, default="")
@output_option("artefact-report")
def reports(hub: HubPlace, tenant: str, device: str, state: str | None, name: str, version: str, form: str) -> None:
    """List what devices report about artefacts.

    One row for each device and version: its newest report. Only of artefacts that the hub has.
    """
    given = {"artefact": name, "version": version, "device": device, "state": state or ""}
    with _explained(), open_artefacts(hub, tenant) as store:
        rows = [{**each, "reported_at": moment_us(each["reported_at"] * 1_000)} for each in store.reports(given)]
    print_listing(REPORTS, rows, form)


@artefact.group()
def keys() -> None:
    """Manage the keys that a hub trusts."""


@keys.command("list")
@hub_options
@tenant_option
@output_option("artefact-key")
def list_keys(hub: HubPlace, tenant: str, form: str) -> None:
    """List the trusted keys of a tenant."""
    with _explained(), open_artefacts(hub, tenant) as store:
        rows = store.keys()
    print_listing(KEYS, rows, form)


@keys.command("add")
@hub_options
@tenant_option
@click.option("--label", default="", show_default="none", help="Text for people, as the name of the maker.")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@audited("artefact-key.create")
def add_key(hub: HubPlace, tenant: str, label: str, file: Path) -> None:
    """Trust the public key of a maker."""
    with _explained(), open_artefacts(hub, tenant) as store:
        found = store.add_key(_public_key(file).pem, label)
    subject_of(found["id"])
    say(f"key {found['id']}: trusted")


@keys.command("remove")
@hub_options
@tenant_option
@click.argument("key")
@audited("artefact-key.remove", "key")
def remove_key(hub: HubPlace, tenant: str, key: str) -> None:
    """Stop trusting a key.

    Artefacts that were uploaded before stay.
    """
    with _explained(), open_artefacts(hub, tenant) as store:
        store.remove_key(key)
    say(f"key {key}: not trusted any more")
