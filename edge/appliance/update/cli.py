"""`waypost update`: install, try and roll back systems of a gateway from a card."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edge.appliance.running import data_option, http_option
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edge.appliance.update.gate import GatewayCondition
    from edge.appliance.update.updating import Updater

root_option = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/"),
    help="Root folder of the machine.  [default: /]",
)
gateway_option = click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True, help="Data directory."
)
restart_option = click.option("--restart/--no-restart", default=True, help="Restart the machine when it is done.")


@click.group()
def update() -> None:
    """Install, test and roll back updates. Run these commands as root.

    The maker of the image signs a bundle (.raucb). It is written to the inactive slot. It is kept when the gateway has
    served as well as before for a minute; otherwise the gateway returns to the old system by itself.
    """


@update.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@data_option
@http_option
@root_option
@restart_option
@click.option(
    "--again/--not-again", default=True, help="Also install a bundle that is installed already, or was rolled back."
)
def install(bundle: Path, data: Path | None, http: str | None, root: Path, restart: bool, again: bool) -> None:
    """Install a bundle, and restart from it.

    \b
    From a laptop:
      ssh root@hall 'cat > /data/update.raucb' < waypost-0.2.0-arm64.raucb
      ssh root@hall waypost update install /data/update.raucb --data /var/lib/waypost
    """
    with _explained():
        say(f"{bundle.name}: checking its signature, then writing it, which takes minutes")
        made = _updater(data, http, root).install(str(bundle.resolve()), again=again)
    say(f"{made.version} is installed, and is tried at the next start")
    if restart:
        _restart_machine()


@update.command()
@gateway_option
@root_option
def fetch(data: Path, root: Path) -> None:
    """Fetch the bundle that is configured. A service of an image runs it.

    Run as the gateway's user. After an interruption it continues where it stopped. It respects the rate and quiet hours
    of the `System`, and ends when the bundle is complete and may be installed, or is no longer wanted.

    If the server also has the bundle's index (FILE.raucb.blocks), only the parts are fetched that the running system
    does not have.
    """
    from functools import partial

    from edge.appliance.identity.files import GatewayIdentity
    from edge.appliance.update.fetching import BundleDownload, trusting_also
    from edge.appliance.update.wanted import WantedFiles

    try:
        authority = GatewayIdentity(data).authority()
    except (OSError, ValueError):  # the gateway has not enrolled
        authority = None
    with _explained():
        files = WantedFiles(data)
        found = BundleDownload(files, partial(trusting_also, authority), system=root).run()
    if found is None:
        say("no system is wanted")
        return
    done = files.fetched()
    say(f"{found.name} is complete, and its checksum is correct")
    say(f"{done.copied >> 20} of {done.bytes >> 20} MiB are from the running system, and were not fetched")


@update.command("install-fetched")
@gateway_option
@http_option
@root_option
@restart_option
def install_fetched(data: Path, http: str | None, root: Path, restart: bool) -> None:
    """Install the fetched bundle, and restart. A service of an image runs it, as root."""
    from edge.appliance.update.slots import BundleInfo
    from edge.appliance.update.wanted import WantedFiles

    files = WantedFiles(data)
    wanted = files.wanted()
    if wanted is None or not (bundle := files.bundle(wanted)).exists():
        say("no bundle was fetched")
        return
    with _explained():
        say(f"Waypost: {wanted.version} is being installed")
        _updater(data, http, root).install_wanted(str(bundle.resolve()), BundleInfo(wanted.version, wanted.build))
    say(f"Waypost: {wanted.version} is installed, and is tried at the next start")
    if restart:
        _restart_machine()


@update.command()
@root_option
@json_option("update")
def status(root: Path, as_json: JsonOutput | None) -> None:
    """Show both slots and the last update."""

    from edge.appliance.update.record import UpdateRecord
    from edge.appliance.update.slots import Rauc

    with _explained():
        slots, last = Rauc().slots(), UpdateRecord(root).last()
    if as_json:
        shown = {"booted": slots.booted._asdict(), "other": slots.other._asdict(), "first": slots.first}
        as_json.show([{**shown, "last": last}])
        return
    for slot, what in ((slots.booted, "runs"), (slots.other, "does not run")):
        good = "can be started" if slot.good and slot.has_system else "cannot be started"
        holds = slot.version or ("as on the new card" if slot.has_system else "empty")
        say(f"slot {slot.letter}: {what}, {good}, {holds}")
    if last is not None:
        say(f"last update: {last.version} in slot {last.slot}: {last.state}{f' ({last.why})' if last.why else ''}")


@update.command()
@root_option
def confirm(root: Path) -> None:
    """Keep the update under test from now on."""
    with _explained():
        kept = _updater(None, None, root).confirm()
    say(f"{kept.version} is kept")


@update.command()
@root_option
@restart_option
def rollback(root: Path, restart: bool) -> None:
    """Restart from the system of the other slot."""
    with _explained():
        slots = _updater(None, None, root).rollback()
    say(f"slot {slots.other.letter} is started next")
    if restart:
        _restart_machine()


@update.command()
@data_option
@http_option
@root_option
@restart_option
def watch(data: Path | None, http: str | None, root: Path, restart: bool) -> None:
    """Mark the running slot as good. It waits until the gateway serves, after an update until it has passed its trial.

    For the service of an image. It ends with the decision.
    """
    import time

    from edge.appliance.update.gate import UpdateVerdict
    from edge.appliance.update.limits import CHECK_INTERVAL_S
    from edge.appliance.update.slots import Rauc

    with _explained():
        updater = _updater(data, http, root)
        tried = updater.current_trial()
        if tried is None:
            while _condition(data, http) is None:
                time.sleep(CHECK_INTERVAL_S)
            Rauc().mark_good()
            return
        say(f"Waypost: {tried.version} is being tried in slot {tried.slot}")
        gate, shown = updater.gate(tried, time.monotonic()), ""
        while (verdict := updater.step(gate, time.monotonic())) is UpdateVerdict.WAIT:
            if gate.lacking != shown:
                shown = gate.lacking
                say(f"Waypost: {shown or 'it is healthy, and has to stay so for a minute'}")
            time.sleep(CHECK_INTERVAL_S)
    if verdict is UpdateVerdict.KEEP:
        say(f"Waypost: {tried.version} is kept")
        return
    say(f"Waypost: {tried.version} is rolled back: {gate.lacking}")
    if restart:
        _restart_machine()


def _updater(data: Path | None, http: str | None, root: Path) -> Updater:
    from functools import partial

    from edge.appliance.update.record import UpdateRecord
    from edge.appliance.update.slots import Rauc
    from edge.appliance.update.updating import Updater

    return Updater(Rauc(), UpdateRecord(root), partial(_condition, data, http))


def _condition(data: Path | None, http: str | None) -> GatewayCondition | None:
    """Return the condition of the gateway on this machine; None when it does not answer."""
    from edge.appliance.running import gateway_client
    from edge.appliance.update.gate import GatewayCondition
    from edge.health.problems import Severity

    try:
        status = gateway_client(data, http).ask("status")
        problems = status.get("problems") or ()
        errors = frozenset(each["name"] for each in problems if each["severity"] == Severity.ERROR.value)
        return GatewayCondition(errors, (status.get("uplink") or {}).get("state") == "connected")
    except (CommandError, AttributeError, KeyError, TypeError):
        return None


def _restart_machine() -> None:
    import os
    import subprocess

    os.sync()
    if subprocess.run(["systemctl", "reboot"], check=False).returncode:  # noqa: S607 - systemd's, of the machine
        raise CommandError(
            "the machine could not be restarted", hint="restart it: reboot", error="machine-not-restarted"
        )


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    from edge.appliance.update.slots import SlotsError
    from edge.appliance.update.updating import UpdateRefused

    try:
        yield
    except UpdateRefused as refused:
        raise CommandError(str(refused), hint=refused.hint, code=Exit.USAGE, error="update-refused") from None
    except SlotsError as error:
        raise CommandError(f"RAUC: {error}", hint="as root, on a gateway from a card", error="update-failed") from None
    except OSError as error:
        raise CommandError(
            f"{error.filename or 'the data partition'}: {error.strerror}", hint="as root", error="file-not-accessible"
        ) from None
