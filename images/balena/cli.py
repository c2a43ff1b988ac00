"""`waypost balena`: manage gateways as a fleet of balenaCloud or openBalena."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from edge.output.listing import JsonOutput, json_option
from images.errors import USAGE, ImageError
from images.prompts import ask

if TYPE_CHECKING:
    from images.balena.account import BalenaAccount
    from images.balena.fleet import BalenaFleet, RegisteredDevice

device_option = click.option("--device", metavar="NAME", help="This device alone (or the beginning of its UUID).")


@click.group()
def balena() -> None:
    """Run gateways as a balena fleet. It sets devices, variables, releases and images.

    \b
    From nothing to a gateway on a Raspberry Pi 4:
      waypost balena login
      waypost balena register acme/gateways gateways.csv --out devices.csv
      waypost balena os download raspberrypi4-64 --version 6.0.10 --out balena.img
      waypost balena os configure balena.img acme/gateways --version 6.0.10 --device hall-1
    """


@balena.command()
@click.option("--token", help="Access token; prompted for if missing.  [env: BALENA_API_KEY]", envvar="BALENA_API_KEY")
@click.option("--host", default="balena-cloud.com", show_default=True, help="Host of an openBalena of your own.")
def login(token: str | None, host: str) -> None:
    """Check an access token, and remember it.

    Create one in balena's dashboard: Preferences, Access tokens. It is stored in a file that only you can read.
    """
    from images.balena import account

    token = token or ask("Access token", "or set BALENA_API_KEY", hidden=True)
    given = account.BalenaLogin(account.parse_endpoint(host), token.strip())
    name = account.connect(given).name
    account.save_login(given, account.login_file())
    click.echo(f"logged in at {given.endpoint} as {name}")


@balena.command()
def logout() -> None:
    """Forget the token. It stays valid at balena until you remove it there."""
    from images.balena import account

    account.delete_login(account.login_file())


@balena.command()
@click.argument("fleet")
@click.option("--tag", default="tenant", show_default=True, help="Tag of a device that names its tenant at the hub.")
@json_option("device")
def devices(fleet: str, tag: str, as_json: JsonOutput | None) -> None:
    """List the devices of a fleet. With name, tenant, release, and if they are online.

    \b
    Tokens for the gateways of one tenant, at the hub:
      waypost balena devices acme/gateways --json | jq -r '.items[] | select(.tenant == "acme").name'
    """
    found = _open_fleet(fleet).devices(tag)
    if as_json:
        keys = ("name", "uuid", "tenant", "online", "os_version", "release")
        as_json.show([{key: getattr(each, key) for key in keys} for each in found])
        return
    _print_table(
        ("NAME", "TENANT", "UUID", "ONLINE", "RELEASE", "OS"),
        [
            (at.name, at.tenant or "-", at.uuid[:7], "yes" if at.online else "no", at.release[:7], at.os_version)
            for at in found
        ],
    )


@balena.command()
@click.argument("fleet")
@click.argument("file", metavar="CSV", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="CSV to write: the registered gateways.",
)
def register(fleet: str, file: Path, out: Path) -> None:
    """Register the gateways of a CSV. They get their tenants and variables.

    Its first row names the columns: `name`, `tenant` if there are several, and one for each variable. OUT gets name
    and UUID. After an interruption run it again with the same CSV: no gateway is registered twice.

    \b
    gateways.csv:
      name,tenant,WAYPOST_HUB,WAYPOST_TOKEN
      hall-1,acme,amqps://hub.example:5671,wpt1…
    """
    from images.balena.fleet import read_device_list

    if out.resolve() == file.resolve():
        raise ImageError(f"{file} would be overwritten", hint="name another file: --out devices.csv", code=USAGE)
    wanted = read_device_list(file)
    target = _open_fleet(fleet)
    try:
        with out.open("w", newline="", encoding="utf-8") as text:
            _write_registered(text, target.register(wanted), len(wanted))
    except OSError as error:
        hint = "registered gateways stay registered: run it again with another --out"
        raise ImageError(f"{out}: {error.strerror}", hint=hint) from None
    click.echo(f"{len(wanted)} in {out}")


def _write_registered(text: TextIO, devices: Iterator[RegisteredDevice], count: int) -> None:
    """Write each device as soon as it is registered."""
    rows = csv.writer(text)
    rows.writerow(("name", "uuid"))
    with click.progressbar(devices, length=count, label="registered", file=sys.stderr) as shown:
        for device in shown:
            rows.writerow((device.name, device.uuid))
            text.flush()


@balena.command()
@click.argument("fleet")
@click.argument("variables", metavar="NAME=VALUE…", nargs=-1, required=True)
@device_option
def preload(fleet: str, variables: tuple[str, ...], device: str | None) -> None:
    """Set variables of a fleet or of a gateway.

    NAME=@FILE takes the value from a file, so that a token is not on a command line.

    \b
      waypost balena preload acme/gateways WAYPOST_HUB=amqps://hub.example:5671 'WAYPOST_FORWARD=plant/#'
    """
    from images.balena.variables import TOKEN
    from images.balena.variables import parse_variables as checked_variables

    checked = checked_variables(variables)
    if TOKEN in checked and device is None:
        hint = "--device NAME chooses it; waypost balena register gives each gateway of a list its own"
        raise ImageError(f"{TOKEN} admits one gateway, not a fleet", hint=hint, code=USAGE)
    _open_fleet(fleet).set_variables(checked, device)


@balena.command()
@click.argument("fleet")
@click.argument("release", required=False)
@click.option("--newest", is_flag=True, help="Follow the newest release again.")
@device_option
def pin(fleet: str, release: str | None, newest: bool, device: str | None) -> None:
    """Pin a fleet or a device to a release. RELEASE is a version, or the beginning of a commit.

    \b
    Try a release on one gateway, then give it to all:
      waypost balena pin acme/gateways 1.4.0 --device hall-1
      waypost balena pin acme/gateways 1.4.0
    """
    if (release is None) is not newest:
        raise ImageError("name a release, or use --newest", code=USAGE)
    commit = _open_fleet(fleet).pin(release, device)
    click.echo(f"{device or fleet}: {commit or 'the newest'}")


@balena.command()
@click.argument("fleet")
@json_option("release")
def releases(fleet: str, as_json: JsonOutput | None) -> None:
    """List the releases of a fleet."""
    found = _open_fleet(fleet).releases()
    if as_json:
        as_json.show(found)
        return
    rows = [(each.get("raw_version") or "-", each["commit"], each.get("created_at") or "-") for each in found]
    _print_table(("VERSION", "COMMIT", "BUILT"), rows)


@balena.group("os")
def os_group() -> None:
    """Download and configure balenaOS images."""


@os_group.command()
@click.argument("device_type", metavar="TYPE")
def versions(device_type: str) -> None:
    """List the versions of balenaOS. TYPE is a type of device, such as raspberrypi4-64."""
    from images.balena import os_image

    for version in os_image.versions(_load_account(), device_type):
        click.echo(version)


@os_group.command()
@click.argument("device_type", metavar="TYPE")
@click.option("--version", default="latest", show_default=True, help="See: waypost balena os versions TYPE")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to make.")
def download(device_type: str, version: str, out: Path) -> None:
    """Download an image of balenaOS. TYPE is a type of device, such as raspberrypi4-64."""
    from images.balena import os_image

    with click.progressbar(length=1, label=out.name, file=sys.stderr) as shown:

        def progress(came: int, length: int) -> None:
            shown.length = length or came
            shown.update(came - shown.pos)

        click.echo(os_image.download(_load_account(), device_type, version, out, progress=progress))


@os_group.command()
@click.argument("img", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("fleet")
@click.option("--version", required=True, help="Version of balenaOS in the image.")
@click.option("--device", metavar="NAME", help="Registered device for this card.")
@click.option("--wifi", metavar="SSID", help="Network to join; its password is prompted for.")
@click.option(
    "--wifi-password", envvar="WAYPOST_WIFI_PASSWORD", help="Password of that network.  [env: WAYPOST_WIFI_PASSWORD]"
)
def configure(
    img: Path, fleet: str, version: str, device: str | None, wifi: str | None, wifi_password: str | None
) -> None:
    """Write the settings of a fleet to an image. The settings are fleet, device and network.

    Without --device each card registers itself as a new device of the fleet, with a key that the image then holds.
    """
    from images.balena import os_image
    from images.balena.fleet import BalenaFleet

    os_image.find_boot_partition(img)
    if wifi is not None and wifi_password is None:
        instead = "or set WAYPOST_WIFI_PASSWORD; empty for an open network"
        wifi_password = ask(f"Password of {wifi}", instead, hidden=True, default="")
    account = _load_account()
    made = os_image.make_configuration(
        account,
        fleet,
        version,
        wifi=None if wifi is None else (wifi, wifi_password or ""),
        uuid=None if device is None else BalenaFleet(account, fleet).find_uuid(device),
    )
    os_image.write_configuration(img, made)
    click.echo(f"{img}: joins {fleet}" + (f" as {device}" if device else ""))


def _load_account() -> BalenaAccount:
    from images.balena import account

    return account.connect(account.load_login(account.login_file()))


def _open_fleet(slug: str) -> BalenaFleet:
    from images.balena.fleet import BalenaFleet

    return BalenaFleet(_load_account(), slug)


def _print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())
