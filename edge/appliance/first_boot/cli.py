"""`waypost first-boot`: commands for the services of an image; users seldom need them."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import click

from edge.output.errors import CommandError, Exit
from edge.output.terminal import say

PAUSES_S = (2.0, 5.0, 15.0, 60.0)
"""Pauses before the next attempts; the last one repeats."""

RESTART_AGAIN_S = 60.0
"""Time after which a restart that was not carried out is repeated."""

root_option = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/"),
    help="Root folder of the machine.  [default: /]",
)


@click.group("first-boot")
def first_boot() -> None:
    """Set up a gateway from the file on its card. The services of an image run these commands."""


@first_boot.command()
@root_option
def settings(root: Path) -> None:
    """Apply the settings of the card. Its file waypost.yaml sets network, clock and SSH.

    Run as root, before the network is up. It can be interrupted and repeated, with the same result.
    """
    from edge.appliance.first_boot.data_disk import move_data, require_current_place
    from edge.appliance.first_boot.places import WAITING, WORKING, CardPaths, set_light
    from edge.appliance.first_boot.settings import apply_settings, record_refusal

    places = CardPaths(root)
    try:
        require_current_place(places, _restart_machine)
        found = apply_settings(places)
        refusal = found.refusal
        if found.card is not None:
            set_light(places, WORKING)  # until the enrolment reports its state
            kept = move_data(places, found.card.spec.data.disk, lambda line: say(f"Waypost: {line}"), _restart_machine)
            if refusal is None and kept is not None:
                refusal = kept
                record_refusal(places.data, refusal)
        if refusal is not None:
            set_light(places, WAITING)
    except OSError as error:
        raise CommandError(f"{error.filename or root}: {error.strerror}", error="file-not-accessible") from None
    if found.card is not None:
        say(f"Waypost {found.card.name}: {'new settings are applied' if found.new else 'settings unchanged'}")
    elif refusal is None:
        say("Waypost: no settings on the card: DHCP on the cable, no hub (waypost.yaml on the first partition)")
    if found.ignored:
        say(f"Waypost: not used from Raspberry Pi Imager: {', '.join(found.ignored)}")
    if refusal is not None:
        code = Exit.FAILED if found.trouble is None else Exit.USAGE
        raise CommandError(refusal.why, hint=refusal.next_step, code=code, error="first-start-failed")


def _restart_machine(why: str) -> NoReturn:
    """Restart the machine. It does not return, so that nothing after it starts (`waypost-settings.service`)."""
    import subprocess
    import time

    say(f"Waypost: {why}; the gateway restarts")
    while True:
        subprocess.run(["systemctl", "reboot"], check=False)  # noqa: S607 - of the image
        time.sleep(RESTART_AGAIN_S)  # it ends here


@first_boot.command()
@root_option
def medium(root: Path) -> None:
    """Read the health of NVMe disks. Run as root."""
    from edge.appliance.nvme import write_logs

    try:
        for fault in write_logs(root):
            say(f"Waypost: {fault}")
    except OSError as error:
        raise CommandError(f"{error.filename or root}: {error.strerror}", error="file-not-accessible") from None


@first_boot.command()
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True, help="Data directory."
)
def environment(data: Path) -> None:
    """Apply the settings of a container. They are WAYPOST_NAME, _HUB, _TOKEN, _FORWARD, _PROXY, _KEEP_FREE.

    Run as the gateway's user. Earlier settings stay where a variable is missing or wrong.
    """
    import os

    from bridge.resources.errors import ConfigurationRejected
    from edge.appliance.first_boot.environment import card_of
    from edge.appliance.first_boot.settings import write_gateway_settings

    try:
        card = card_of(os.environ)
        if card is not None:
            write_gateway_settings(data, card)
    except OSError as error:
        raise CommandError(f"{error.filename or data}: {error.strerror}", error="file-not-accessible") from None
    except ConfigurationRejected as rejected:
        words = "\n".join(str(error) for error in rejected.errors)
        step = "correct the container's variables: WAYPOST_HUB, _TOKEN, _FORWARD and _PROXY are spec.hub"
        raise CommandError(
            f"the settings of the environment were not applied:\n{words}",
            hint=step,
            code=Exit.USAGE,
            error="first-start-failed",
        ) from None


@first_boot.command("enrol")
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True, help="Data directory."
)
@root_option
@click.option("--once", is_flag=True, help="Try once, and fail if it does not succeed.")
@click.option("--mqtts", metavar="HOST:PORT", help="Serve MQTT over TLS here, once it has enrolled.")
@click.option("--https", metavar="HOST:PORT", help="Serve HTTP and the console over TLS here, once it has enrolled.")
@click.option("--restart", is_flag=True, help="Ask waypost-restart.path for a restart where a setting needs one.")
def enrol_gateway(data: Path, root: Path, once: bool, mqtts: str | None, https: str | None, restart: bool) -> None:
    """Enrol at the hub of the settings. Then forward to it, and report the set-up; repeat until all of it is done.

    Run as the gateway's user, while the gateway serves. Listeners with TLS use the certificate that the hub issues, and
    are added where the gateway has none. The console, the gateway's problems and DATA/first-boot/state.json show what
    it waits for.
    """
    import time
    from functools import partial

    from edge.appliance.first_boot.attesting import attestation, report, report_refusal, system
    from edge.appliance.first_boot.enrolling import FirstBoot, FirstBootInterrupted
    from edge.appliance.first_boot.journal import refusal_of
    from edge.appliance.first_boot.places import CardPaths, request_restart

    places = CardPaths(root)
    work = FirstBoot(
        data,
        partial(attestation, places),
        time.time,
        partial(system, places),
        tls={name: place for name, place in (("mqtts", mqtts), ("https", https)) if place is not None},
        restart=partial(request_restart, places) if restart else lambda: None,
    )
    wanted = work.journal.wanted()
    if wanted is None:
        refusal = refusal_of(data)
        say("Waypost: nothing to set up" if refusal is None else report_refusal(places, refusal).rstrip("\n"))
        return
    work.journal.begin(wanted)
    shown = ""
    if not (work.journal.state.done_at or work.journal.state.trouble):
        shown = report(places, wanted.name, work.journal.state, refusal_of(data))
        say(shown.rstrip("\n"))
    for number in range(1 << 62):
        trouble: FirstBootInterrupted | None = None
        try:
            work.step()
        except FirstBootInterrupted as stopped:
            trouble = stopped
        except OSError as error:
            words = f"{error.filename or data}: {error.strerror}"
            trouble = FirstBootInterrupted(words, "is the card full or worn out? See waypost doctor")
        if trouble is not None:
            work.stopped(trouble)
        text = report(places, wanted.name, work.journal.state, refusal_of(data))
        if text != shown:
            say(text.rstrip("\n"))
            shown = text
        if trouble is None:
            return
        if once:
            raise CommandError(str(trouble), hint=trouble.next_step, error="first-start-failed")
        time.sleep(PAUSES_S[min(number, len(PAUSES_S) - 1)])
