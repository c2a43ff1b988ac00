"""`waypost hub device`: the devices that a hub's registry knows, and their credentials.

The registry has the management API of Eclipse Hono; these commands send what its clients send.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any, Final

import click

from bridge.resources.parse import to_yaml
from cloud.fleet.audited import audited
from cloud.fleet.device_store import DeviceStore, open_devices
from cloud.fleet.place import HubPlace, hub_options, parse_duration
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.password import read_password
from edge.output.terminal import say
from edge.output.text import word

DEVICES: Final = Listing(
    "device", "id", ("id", "enabled", "via", "labels"), ("gateways", "updated"), empty="no such device"
)
LOCAL: Final = Listing("device", "device", ("device", "gateway", "conflict"), (), empty="no such device")
HASHED: Final = "hashed-password"
SECRETS_MAX: Final = 4
"""Secrets of one credential (`cloud.hub.devices.limits`)."""
tenant_option = click.option(
    "--tenant", default="", show_default="default; over HTTP the user's own", help="Tenant of the device."
)
password_option = click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input: one line, or a prompt on a terminal."
)


@click.group()
def device() -> None:
    """Manage the devices in the registry of a hub.

    A gateway gets the devices that name it, or that select it by its labels, and lets them in without the hub.
    """


@device.command()
@hub_options
@tenant_option
@click.option("--via", multiple=True, metavar="DEVICE", help="Device that acts for it; repeatable.")
@click.option("--member-of", multiple=True, metavar="GROUP", help="Group of acting devices it belongs to; repeatable.")
@click.option("--gateway", "gateways", multiple=True, help="Gateway at which it may appear; repeatable.")
@click.option("--label", "words", multiple=True, metavar="KEY=VALUE", help="Label of the device; repeatable.")
@click.option("--disabled", is_flag=True, help="Add it disabled.")
@click.option("--auth-id", default="", show_default="DEVICE", help="Its user name, without the tenant.")
@click.option("--no-password", is_flag=True, help="Add it without a password.")
@password_option
@click.argument("name", metavar="DEVICE")
@json_option("device")
@audited("device.create", "name")
def add(
    hub: HubPlace,
    tenant: str,
    via: Sequence[str],
    member_of: Sequence[str],
    gateways: Sequence[str],
    words: Sequence[str],
    disabled: bool,
    auth_id: str,
    no_password: bool,
    password_stdin: bool,
    name: str,
    as_json: JsonOutput | None,
) -> None:
    """Add a device. A generated password is shown once.

    \b
    waypost hub device add --data HUBDIR pump-7 --gateway plant-1 --label site=berlin
    """
    document: dict[str, Any] = {"enabled": not disabled, "via": list(via), "memberOf": list(member_of)}
    extension = {"gateways": list(gateways), "labels": _labels(words)}
    if any(extension.values()):
        document["ext"] = {"waypost": {key: value for key, value in extension.items() if value}}
    password = None if no_password else _password(password_stdin)
    with open_devices(hub, tenant) as devices:
        devices.add(name, document)
        if password is not None:
            _add_password(devices, hub, name, auth_id or name, password)
    shown = {} if password is None or password_stdin else {"password": password}
    if as_json:
        as_json.show([{"id": name, "auth_id": None if password is None else auth_id or name, **shown}])
        return
    say(f"{name}: added")
    for label, value in shown.items():
        say(f"{label}: {value}")


def _add_password(devices: DeviceStore, hub: HubPlace, name: str, auth_id: str, password: str) -> None:
    """Give a new device its password. Raises CommandError with the way to do it later."""
    made = [{"type": HASHED, "auth-id": auth_id, "secrets": [{"pwd-plain": password}]}]
    try:
        devices.set_credentials(name, made, devices.credentials(name).tag)
    except CommandError as error:
        step = f"waypost hub device credentials rotate {word(name)} {hub.quoted()}"
        what = f"{name}: added without a password: {error}"
        raise CommandError(what, f"give it one: {step} --auth-id NAME", error=error.error) from None


@device.command("list")
@hub_options
@tenant_option
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="/FIELD=VALUE",
    help="Field of the registration: /ext/site=Ber*, /enabled=false. * and ? are wildcards; repeatable.",
)
@click.option("--acting/--not-acting", default=None, help="Only devices that act for others, or only the others.")
@click.option(
    "--local", is_flag=True, help="Instead the devices that were added at gateways, each with its gateway as origin."
)
@click.option("--gateway", help="With --local: only those of this gateway.")
@output_option("device")
def list_devices(
    hub: HubPlace,
    tenant: str,
    filters: Sequence[str],
    acting: bool | None,
    local: bool,
    gateway: str | None,
    form: str,
) -> None:
    """List devices by their ids.

    With --local, devices that `waypost device add` has added at a gateway: the registry has their names only. A
    conflict is a device of the registry with the same name, which this gateway does not let in.
    """
    if local:
        with open_devices(hub, tenant) as devices:
            added = list(devices.local(gateway))
        print_listing(LOCAL, added, form)
        return
    wanted = [_filter(each) for each in filters]
    with open_devices(hub, tenant) as devices:
        rows = [_row(each) for each in devices.find(wanted, acting)]
    print_listing(DEVICES, rows, form)


@device.command()
@hub_options
@tenant_option
@click.argument("name", metavar="DEVICE")
@json_option("device")
def show(hub: HubPlace, tenant: str, name: str, as_json: JsonOutput | None) -> None:
    """Show a device and its credentials.

    Secrets are not shown.
    """
    with open_devices(hub, tenant) as devices:
        document = {"id": name, **devices.get(name).document, "credentials": devices.credentials(name).credentials}
    if as_json:
        as_json.show([document])
        return
    say(to_yaml(document).rstrip("\n"))


@device.command()
@hub_options
@tenant_option
@click.option(
    "--gateway", "gateways", multiple=True, required=True, help="Gateway at which it may appear then; repeatable."
)
@click.argument("names", metavar="DEVICE...", nargs=-1, required=True)
@json_option("device")
@audited("device.change", "names")
def move(hub: HubPlace, tenant: str, gateways: Sequence[str], names: Sequence[str], as_json: JsonOutput | None) -> None:
    """Move devices to other gateways.

    A device appears at the named gateways only then, and its commands follow it to a single one. The rest of its
    registration and its credentials stay.

    \b
    waypost hub device move --data HUBDIR pump-7 --gateway plant-3
    """
    moved = []
    with open_devices(hub, tenant) as devices:
        for name in names:
            found = devices.get(name)
            document, selector = _moved(found.document, gateways)
            devices.replace(name, document, found.tag)
            moved.append({"id": name, "gateways": list(gateways)})
            if not as_json:
                more = f"; before, gateways with the labels {selector}" if selector else ""
                say(f"{name}: moved to {', '.join(gateways)}{more}")
    if as_json:
        as_json.show(moved)


def _moved(document: dict[str, Any], gateways: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the registration of a device that has moved, and the selector that it had. A selector would keep the
    device at the gateways that it chooses."""
    extension = dict(document.get("ext", {}).get("waypost", {}))
    selector = extension.pop("selector", "")
    kept = {key: value for key, value in document.items() if key != "status"}
    return {**kept, "ext": {**document.get("ext", {}), "waypost": {**extension, "gateways": list(gateways)}}}, selector


@device.command()
@hub_options
@tenant_option
@click.argument("names", metavar="DEVICE...", nargs=-1, required=True)
@audited("device.remove", "names")
def remove(hub: HubPlace, tenant: str, names: Sequence[str]) -> None:
    """Remove devices with their credentials."""
    with open_devices(hub, tenant) as devices:
        for name in names:
            devices.remove(name)
            say(f"{name}: removed")


@device.group()
def credentials() -> None:
    """Manage the credentials of a device."""


@credentials.command()
@hub_options
@tenant_option
@click.option("--auth-id", default="", show_default="the only one, else DEVICE", help="User name of the password.")
@click.option(
    "--overlap", metavar="TIME", help="Time for which the old passwords stay valid: 30m, 24h, 7d.  [default: none]"
)
@password_option
@click.argument("name", metavar="DEVICE")
@json_option("device-password")
@audited("device.credentials", "name")
def rotate(
    hub: HubPlace,
    tenant: str,
    auth_id: str,
    overlap: str | None,
    password_stdin: bool,
    name: str,
    as_json: JsonOutput | None,
) -> None:
    """Give a device a new password. It is shown once.

    With --overlap the old ones stay valid for that time, so that the device can be changed without a gap.
    """
    now = datetime.datetime.now(datetime.UTC)
    until = now + datetime.timedelta(seconds=parse_duration(overlap)) if overlap is not None else None
    password = _password(password_stdin)
    with open_devices(hub, tenant) as devices:
        found = devices.credentials(name)
        user = auth_id or _only_user(found.credentials, name)
        wanted = [_rotated(each, user, password, now, until) for each in found.credentials]
        if not any(_is_password_of(each, user) for each in found.credentials):
            wanted.append({"type": HASHED, "auth-id": user, "secrets": [{"pwd-plain": password}]})
        devices.set_credentials(name, wanted, found.tag)
    shown = {} if password_stdin else {"password": password}
    if as_json:
        as_json.show([{"id": name, "auth_id": user, **shown}])
        return
    say(f"{name}: new password of {user}")
    for label, value in shown.items():
        say(f"{label}: {value}")


def _rotated(
    credential: dict[str, Any], user: str, password: str, now: datetime.datetime, until: datetime.datetime | None
) -> dict[str, Any]:
    """Return a credential with the new password, if it is the one of that user. Raises CommandError if it has no room
    for one more."""
    if not _is_password_of(credential, user):
        return credential
    kept = [] if until is None else [_ending(each, until) for each in credential["secrets"] if not _ended(each, now)]
    if len(kept) >= SECRETS_MAX:
        raise CommandError(
            f"{user} has {len(kept)} passwords already",
            "wait until one ends, or rotate without --overlap",
            error="conflict",
        )
    return {**credential, "secrets": [*kept, {"pwd-plain": password}]}


def _ending(secret: dict[str, Any], until: datetime.datetime) -> dict[str, Any]:
    """Return a secret that ends at a time, or before."""
    ends_at = secret.get("not-after")
    if ends_at is not None and datetime.datetime.fromisoformat(ends_at) <= until:
        return secret
    return {**secret, "not-after": until.isoformat()}


def _ended(secret: dict[str, Any], now: datetime.datetime) -> bool:
    ends_at = secret.get("not-after")
    return bool(ends_at is not None and datetime.datetime.fromisoformat(ends_at) <= now)


def _is_password_of(credential: dict[str, Any], user: str) -> bool:
    return bool(credential["type"] == HASHED and credential["auth-id"] == user)


def _only_user(found: Sequence[dict[str, Any]], name: str) -> str:
    """Return the user name of a device with one; else the name of the device. Raises CommandError for several."""
    users = [str(each["auth-id"]) for each in found if each["type"] == HASHED]
    if len(users) > 1:
        what = f"{name} has the user names {', '.join(users)}"
        raise CommandError(what, "choose one: --auth-id NAME", error="wrong-usage", code=Exit.USAGE)
    return users[0] if users else name


def _password(from_stdin: bool) -> str:
    """Return the password of standard input, or a generated one. Raises CommandError."""
    from edge.broker.security.credentials import generated_password

    if not from_stdin:
        return generated_password()
    try:
        found = read_password()
    except UnicodeDecodeError:
        raise CommandError("the password is not UTF-8", error="wrong-usage", code=Exit.USAGE) from None
    if not found:
        raise CommandError("standard input has no password", error="wrong-usage", code=Exit.USAGE)
    return found


def _labels(words: Sequence[str]) -> dict[str, str]:
    found = dict(each.partition("=")[::2] for each in words)
    for each in words:
        if "=" not in each:
            raise CommandError(f'"{each}" is not a label; expected KEY=VALUE', error="invalid-label", code=Exit.USAGE)
    return found


def _filter(text: str) -> dict[str, Any]:
    """Return a filter of the API. true, false and numbers are values of their types. Raises CommandError."""
    field, equals, value = text.partition("=")
    if not equals or not field.startswith("/"):
        what = f'"{text}" is not a filter; expected for example /ext/site=Berlin'
        raise CommandError(what, error="wrong-usage", code=Exit.USAGE)
    try:
        typed = json.loads(value)
    except ValueError:
        typed = value
    return {"field": field, "value": typed if isinstance(typed, bool | int | float | str) else value}


def _row(found: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the list."""
    extension = found.get("ext", {}).get("waypost", {})
    return {
        "id": found["id"],
        "enabled": found["enabled"],
        "via": found.get("via", []),
        "labels": extension.get("labels", {}),
        "gateways": extension.get("gateways", []),
        "updated": found["status"].get("updated") or found["status"]["created"],
    }
