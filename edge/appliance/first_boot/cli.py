"""`waypost edge first-boot`: what the services of a gateway from a card run; people seldom do."""

from __future__ import annotations

from pathlib import Path

import click

from edge.appliance.errors import CommandError, Exit
from edge.output.terminal import say

PAUSES_S = (2.0, 5.0, 15.0, 60.0)
"""Before the next try; the last one for as long as it takes."""

root_option = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/"),
    help="Root folder of the machine.  [default: /]",
)


@click.group("first-boot")
def first_boot() -> None:
    """Set a gateway up from the file on its card; for the services of an image."""


@first_boot.command()
@root_option
def settings(root: Path) -> None:
    """Apply waypost.yaml of the card's first partition: write the settings of network, clock and SSH.

    Runs as root, before the network is up. It may be repeated or cut off anywhere, with the same result.
    """
    from edge.appliance.first_boot.places import WAITING, WORKING, CardPaths, show
    from edge.appliance.first_boot.settings import take_up

    places = CardPaths(root)
    try:
        found = take_up(places)
        if found.trouble is not None or found.unread is not None:
            show(places, WAITING)
        elif found.card is not None:
            show(places, WORKING)  # until who enrols says more
    except OSError as error:
        raise CommandError(f"{error.filename or root}: {error.strerror}") from None
    if found.card is not None:
        say(f"Waypost {found.card.name}: {'new settings are taken up' if found.new else 'settings as before'}")
    elif found.trouble is None and found.unread is None:
        say("Waypost: no settings on the card: DHCP on the cable, no hub (waypost.yaml on the first partition)")
    if found.unread is not None:
        why = f"the card's first partition cannot be read: {found.unread}. Settings on it were not taken up"
        step = "switch it off and on; else, on another machine: fsck.vfat -a of its first partition, or flash a card"
        raise CommandError(why, hint=step)
    if found.trouble is not None:
        step = "correct waypost.yaml on the card's first partition, and start the gateway again"
        raise CommandError(f"the settings on the card were not taken up:\n{found.trouble}", hint=step, code=Exit.USAGE)


@first_boot.command()
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True, help="Data directory."
)
def environment(data: Path) -> None:
    """Apply the settings of a container: WAYPOST_NAME, _HUB, _TOKEN, _FORWARD, _PROXY, _KEEP_FREE.

    Runs as the gateway's user. Earlier settings stay where a variable is missing or wrong.
    """
    import os

    from bridge.resources.errors import ConfigurationRejected
    from edge.appliance.first_boot.environment import card_of
    from edge.appliance.first_boot.settings import tell_gateway

    try:
        card = card_of(os.environ)
        if card is not None:
            tell_gateway(data, card)
    except OSError as error:
        raise CommandError(f"{error.filename or data}: {error.strerror}") from None
    except ConfigurationRejected as rejected:
        words = "\n".join(str(error) for error in rejected.errors)
        step = "correct the container's variables: WAYPOST_HUB, _TOKEN, _FORWARD and _PROXY are spec.hub"
        raise CommandError(
            f"the settings of the environment were not taken up:\n{words}", hint=step, code=Exit.USAGE
        ) from None


@first_boot.command("enrol")
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True, help="Data directory."
)
@root_option
@click.option("--once", is_flag=True, help="Try once, and fail if it cannot be done now.")
@click.option("--mqtts", metavar="HOST:PORT", help="Serve MQTT over TLS here, once it has enrolled.")
@click.option("--https", metavar="HOST:PORT", help="Serve HTTP and the console over TLS here, once it has enrolled.")
@click.option("--restart", is_flag=True, help="Ask waypost-restart.path for a restart where a setting needs one.")
def enrol_gateway(data: Path, root: Path, once: bool, mqtts: str | None, https: str | None, restart: bool) -> None:
    """Enrol at the hub of the settings, forward to it, and report what was set up; try until all of it is done.

    Runs as the gateway's user, while the gateway serves. Listeners with TLS show the certificate that the hub issues,
    and are added where the gateway has none. The console, the gateway's problems and
    DATA/first-boot/state.json say what it waits for.
    """
    import time
    from functools import partial

    from edge.appliance.first_boot.attesting import attestation, report, system
    from edge.appliance.first_boot.enrolling import FirstBoot, FirstBootInterrupted
    from edge.appliance.first_boot.places import CardPaths, ask_for_restart

    places = CardPaths(root)
    work = FirstBoot(
        data,
        partial(attestation, places),
        time.time,
        partial(system, places),
        tls={name: place for name, place in (("mqtts", mqtts), ("https", https)) if place is not None},
        restart=partial(ask_for_restart, places) if restart else lambda: None,
    )
    wanted = work.journal.wanted()
    if wanted is None:
        say("Waypost: nothing to set up")
        return
    work.journal.begin(wanted)
    said = ""
    if not (work.journal.state.done_at or work.journal.state.trouble):
        said = report(places, wanted.name, work.journal.state)
        say(said.rstrip("\n"))
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
        text = report(places, wanted.name, work.journal.state)
        if text != said:
            say(text.rstrip("\n"))
            said = text
        if trouble is None:
            return
        if once:
            raise CommandError(str(trouble), hint=trouble.next_step)
        time.sleep(PAUSES_S[min(number, len(PAUSES_S) - 1)])
