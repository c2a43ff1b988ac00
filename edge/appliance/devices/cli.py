"""`waypost device`: devices of one gateway, with least rights and the settings to paste into them.

A device is a user without a right to the console. The commands write the credential file of a data directory, as
`waypost user` does; a running gateway applies the change within a second, and tells its hub the name. They need no hub.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import click
from click.decorators import FC

from bridge.resources import values
from edge.appliance.accounts.cli import data_option, parse_allowed, password_options, read_or_make_password, with_users
from edge.appliance.accounts.profiles import PROFILES
from edge.appliance.accounts.rights_in_words import rights_in_words
from edge.appliance.devices.examples import CA_FILE, EXAMPLES, MQTT, DeviceLogin
from edge.appliance.devices.listed import (
    CONFLICT,
    IN_FORCE,
    HubDeviceRow,
    device_rows,
    hub_devices,
    hub_row,
    is_device,
    local_row,
    provisioned_rows,
)
from edge.appliance.opening import draw_code, reachable_url
from edge.broker.listeners.endpoints import running_endpoints
from edge.broker.security import rights
from edge.broker.security.credentials import CredentialFile, CredentialSecret, CredentialsError
from edge.broker.security.user_changes import UserExists, UserNotFound, add_user, remove_user, rotate_secret
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.terminal import say
from edge.output.text import word

DEVICES: Final = Listing("device", "name", ("name", "origin", "state", "allow"), ("secrets",), "no devices")
PROFILE: Final = "sensor"
"""Profile with the least rights: its own addresses."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@click.group()
def device() -> None:
    """Add devices, with the settings to paste.

    A device sends below plant/NAME and gets commands at command/NAME. One that is added here works at this gateway
    only. Those that the hub gives to this gateway are listed too.
    """


def _example_options(function: FC) -> FC:
    example = click.option(
        "--example", type=click.Choice(list(EXAMPLES)), help="Print settings or a program with the new password."
    )
    url = click.option(
        "--url",
        metavar="SCHEME://HOST:PORT",
        help="Address for --example and --qr: mqtt, mqtts, http or https.  [default: of the running gateway]",
    )
    code = click.option("--qr", is_flag=True, help="Draw a QR code of the address with name and password.")
    return example(url(code(function)))


@device.command()
@click.argument("name")
@data_option
@password_options
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="OPERATIONS:FILTER",
    help="Further right, e.g. send:alarm/%u (repeatable; %u device, %c client id).",
)
@_example_options
@json_option("device")
def add(
    name: str,
    data: Path,
    password_stdin: bool,
    generate: bool,
    allowed: tuple[str, ...],
    example: str | None,
    url: str | None,
    qr: bool,
    as_json: JsonOutput | None,
) -> None:
    """Add a device. Its password is shown once.

    \b
    waypost device add pump7 --data ./gw --example micropython
    """
    _require_name(name)
    rules, place = parse_allowed((*PROFILES[PROFILE], *allowed)), _place(data, example, url, qr)
    password, made = read_or_make_password(password_stdin, generate)
    try:
        with_users(data, lambda file: add_user(file, name, rules, password))
    except UserExists as why:
        of = f"{word(name)} --data {word(data)}"
        step = f"look at it: waypost device show {of}\na new password: waypost device credentials rotate {of}"
        raise CommandError(str(why), hint=step, error="user-exists") from None
    if name in _of_hub(data):
        say(f"note: the hub has a device {name}: it is not let in here while this one exists", err=True)
    document = {"name": name, "allow": rights.format_rights(rules)}
    _report(f"{name}: added", document, _login(place, name, password), made, example, qr, as_json)


@device.command("list")
@data_option
@output_option("device")
def list_devices(data: Path, form: str) -> None:
    """List the devices.

    These are the users without a right to the console, the devices of the hub (origin hub), and those that were let in
    by their certificates and that the hub has not registered (origin certificate). A conflict is a name that a user and
    a device of the hub have: the device that was added here works.
    """
    users = with_users(data, lambda file: file.load()).users
    rows = [*device_rows(users, _of_hub(data)), *_provisioned(data)]
    print_listing(DEVICES, sorted(rows, key=lambda row: row["name"]), form)


@device.command()
@click.argument("name")
@data_option
@json_option("device")
def show(name: str, data: Path, as_json: JsonOutput | None) -> None:
    """Show a device and its rights.

    Its passwords are listed without secrets.
    """
    users, devices = with_users(data, lambda file: file.load()).users, _of_hub(data)
    user, device = users.get(name), devices.get(name)
    new = next((each for each in _provisioned(data) if each["name"] == name), None)
    if user is not None:
        rules, row, secrets = user.rules, local_row(user, devices), [_secret_of(each) for each in user.secrets]
    elif device is not None:
        rules, row, secrets = rights.parse_rights(PROFILES[PROFILE]), hub_row(device, users), device.secrets
    elif new is not None:
        rules, row, secrets = rights.parse_rights(new["allow"]), new, []
    else:
        raise _unknown(name, data)
    if as_json:
        as_json.show([{**row, "secrets": secrets}])
        return
    state = "" if row["state"] == IN_FORCE else f", {row['state']}"
    say(f"{name}  ({row['origin']}{state})")
    if row["state"] == CONFLICT:
        say("  the hub has a device with this name; it is let in once this one is removed")
    if "reason" in row:
        say(f"  the hub refuses it: {row['reason']}")
    for sentence in rights_in_words(rules, name):
        say(f"  {sentence}")
    for secret in secrets:
        end = "" if secret["not_after"] is None else f" until {_moment(secret['not_after'])}"
        login = f" of {secret['login']}" if secret.get("login", name) != name else ""
        say(f"  password {secret['id']}{login}{end}")


@device.command()
@click.argument("name")
@data_option
@json_option("device")
def remove(name: str, data: Path, as_json: JsonOutput | None) -> None:
    """Remove a device. Its connections are closed, and it can no longer log in."""
    _changed(data, name, lambda file: remove_user(file, name))
    if as_json:
        as_json.show([{"name": name}])
        return
    say(f"{name}: removed")


@device.group()
def credentials() -> None:
    """Manage the credentials of a device."""


@credentials.command()
@click.argument("name")
@data_option
@password_options
@click.option(
    "--overlap", default="1h", show_default=True, help="Time for which the old passwords stay valid: 0s, 90s, 1h, 7d."
)
@_example_options
@json_option("device")
def rotate(
    name: str,
    data: Path,
    password_stdin: bool,
    generate: bool,
    overlap: str,
    example: str | None,
    url: str | None,
    qr: bool,
    as_json: JsonOutput | None,
) -> None:
    """Give a device a new password.

    It is shown once, and the device is not disconnected.

    The old ones stay valid for the overlap.
    """
    try:
        ends_at_s = time.time() + values.duration(overlap)
    except ValueError as why:
        raise CommandError(str(why), code=Exit.USAGE, error="wrong-usage") from None
    place = _place(data, example, url, qr)
    password, made = read_or_make_password(password_stdin, generate)
    _changed(data, name, lambda file: rotate_secret(file, name, password, ends_at_s=ends_at_s))
    text = f"{name}: new password; the old ones end {_moment(ends_at_s)}"
    document = {"name": name, "old_end": ends_at_s}
    _report(text, document, _login(place, name, password), made, example, qr, as_json)


# --- inside ----------------------------------------------------------------------------------------------------------


def _require_name(name: str) -> None:
    """Raise CommandError unless the name is safe in topics, URLs and programs."""
    if not _NAME.fullmatch(name):
        raise CommandError(
            f"{name[:80]!r} is not a name of a device",
            "use 1 to 64 letters, digits, '.', '_', '-' or '@', beginning with a letter or digit",
            code=Exit.USAGE,
            error="wrong-usage",
        )


def _place(data: Path, example: str | None, url: str | None, qr: bool) -> SplitResult | None:
    """Return the address for the device; None if none is wanted. Raises CommandError before anything is changed."""
    if example is None and not qr:
        return None
    wanted = EXAMPLES[example].listeners if example is not None else MQTT
    if url is not None:
        found = urlsplit(url)
        try:
            valid = found.scheme in wanted and bool(found.hostname) and found.port is not None
        except ValueError:
            valid = False
        if not valid or found.path.strip("/"):
            step = f"write for example {wanted[0]}://gateway.local:8883; this needs {' or '.join(wanted)}"
            raise CommandError(f"--url {url[:200]}: not an address", step, code=Exit.USAGE, error="wrong-usage")
        return found
    listening = running_endpoints(data)
    if listening is None:
        step = f"start it: waypost run --data {word(data)}, or give its address with --url"
        raise CommandError(f"no gateway runs on {data}", step, code=Exit.UNREACHABLE, error="not-running")
    for name in wanted:
        if name in listening:
            return urlsplit(reachable_url(name, listening[name]))
    step = f"add one to spec.listeners of its Gateway resource, or give the address: --url {wanted[0]}://HOST:PORT"
    raise CommandError(f"the gateway has no listener {' or '.join(wanted)}", step, error="wrong-usage")


def _login(place: SplitResult | None, name: str, password: str) -> DeviceLogin | None:
    if place is None:
        return None
    return DeviceLogin(place.scheme, place.hostname or "", place.port or 0, name, password)


def _report(
    text: str,
    document: dict[str, Any],
    login: DeviceLogin | None,
    password: str | None,
    example: str | None,
    qr: bool,
    as_json: JsonOutput | None,
) -> None:
    """Print the result. The password is shown only this once."""
    block = EXAMPLES[example].text(login) if example is not None and login is not None else None
    if as_json:
        more = {"password": password, "example": block, "url": login.url if qr and login is not None else None}
        as_json.show([{**document, **{key: value for key, value in more.items() if value is not None}}])
        return
    say(text)
    if password is not None and block is None:
        say(f"password: {password}")
    if block is not None:
        say(f"\n{block}\n")
    if login is not None and login.tls:
        say(f"note: {CA_FILE} is the certificate of the gateway's authority; copy it to the device", err=True)
    if qr and login is not None:
        draw_code(login.url)


def _changed(data: Path, name: str, change: Callable[[CredentialFile], object]) -> None:
    """Change a device. Raises CommandError."""

    def changed(file: CredentialFile) -> None:
        found = file.load().users.get(name)
        if found is None and name in _of_hub(data):
            step = f"change it at the hub: waypost hub device show {word(name)}"
            raise CommandError(f"{name} is a device of the hub", step, error="users-not-changed")
        if found is not None and not is_device(found):
            raise _unknown(name, data)
        try:
            change(file)
        except UserNotFound:
            raise _unknown(name, data) from None

    with_users(data, changed)


def _unknown(name: str, data: Path) -> CommandError:
    return CommandError(
        f"no device {name[:80]}", f"list them: waypost device list --data {word(data)}", error="user-not-found"
    )


def _of_hub(data: Path) -> dict[str, HubDeviceRow]:
    """Return the devices of the hub. Raises CommandError."""
    try:
        return hub_devices(data)
    except CredentialsError as why:
        raise CommandError(str(why), error="users-damaged") from None


def _provisioned(data: Path) -> list[dict[str, Any]]:
    """Return the rows of devices that were let in by their certificates. Raises CommandError."""
    try:
        return provisioned_rows(data)
    except CredentialsError as why:
        raise CommandError(str(why), error="users-damaged") from None


def _secret_of(secret: CredentialSecret) -> dict[str, Any]:
    return {"id": secret.id, "not_before": secret.not_before or None, "not_after": secret.not_after}


def _moment(utc_s: float) -> str:
    return datetime.datetime.fromtimestamp(utc_s, datetime.UTC).isoformat(timespec="seconds")
