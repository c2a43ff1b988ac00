"""The commands that change a store: `import`, `purge`, `migrate`, `repair`, `new-epoch`. The gateway has to be off."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from edge.appliance.errors import CommandError, Exit
from edge.appliance.store.shared import (
    confirm,
    data_option,
    explained,
    json_option,
    progress,
    selection_of,
    store_path,
)
from edge.broker.store.lock import is_held
from edge.output.amounts import counted, size
from edge.output.terminal import say, say_json


@click.command("import")
@data_option
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.ndjson")
@click.option("--dev", is_flag=True, help="Addresses as `edge run --dev` has them.")
@click.option("--config", type=click.Path(path_type=Path, exists=True), help="YAML resources, instead of applied ones.")
@click.option("--again", is_flag=True, help="Import the file although it was imported before.")
@json_option
def import_(data: Path, source: Path, dev: bool, config: Path | None, again: bool, as_json: bool) -> None:
    """Publish the messages of an NDJSON file to their addresses, as new messages.

    The gateway must be stopped. Lines are those of `export`; `address` and a body (`text`, `json`, `base64`) suffice.
    Time and device of reception are kept; sequences are new. Run it again after an interruption: it continues where it
    stopped, and each message is stored once.
    """
    from bridge.resources.errors import ConfigurationRejected
    from edge.appliance.store.restore import import_messages
    from edge.configuration.file import RepositoryError
    from edge.configuration.options import OptionsRefused, RunOptions, configuration_of

    options = RunOptions(data=data, config=config, dev=dev)
    try:
        configuration = configuration_of(options)
    except OptionsRefused as refused:
        raise CommandError(str(refused), hint="give --dev, or --config FILE", code=Exit.USAGE) from None
    except ConfigurationRejected as rejected:
        raise CommandError("\n".join(map(str, rejected.errors)), code=Exit.USAGE) from None
    except RepositoryError as error:
        raise CommandError(str(error)) from None
    with explained(), progress("importing", quiet=as_json) as on_progress:
        done = import_messages(data, source, configuration, on_progress, again=again)
    if as_json:
        say_json(done, indent=0)
        return
    say(f"{source}: {counted(done.messages, 'message')} stored")
    if done.skipped:
        say(f"  {counted(done.skipped, 'line')} imported before; --again imports them once more")
    if done.unwanted:
        say(f"  {counted(done.unwanted, 'message')} not kept: no queue and no subscription for the address")


@click.command()
@data_option
@click.option("--log", "logs", multiple=True, metavar="NAME", help="Only this log (repeatable; see `info`).")
@click.option("--address", metavar="FILTER", help="Only addresses this filter matches.")
@click.option("--device", metavar="NAME", help="Only messages of this device.")
@click.option("--since", metavar="TIME", help="Only what was received since: an age (2h, 7d) or 2026-11-21T08:00.")
@click.option("--until", metavar="TIME", help="Only what was received before: 7d purges what is older than a week.")
@click.option("--cursor", metavar="NAME", help="Only for this consumer group; others keep what they wait for.")
@click.option("--all", "everything", is_flag=True, help="Every message there is.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def purge(
    data: Path,
    logs: tuple[str, ...],
    address: str | None,
    device: str | None,
    since: str | None,
    until: str | None,
    cursor: str | None,
    everything: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Give up messages nobody has acknowledged yet. The loss ledger says which, and goes to the hub.

    The gateway must be stopped. Says what would go, and asks. With --cursor alone, of a forwarder that is configured no
    more, nothing is kept for it from then on.
    """
    from edge.appliance.store.forwarders import is_left
    from edge.appliance.store.purge import plan
    from edge.appliance.store.purge import purge as purge_store
    from edge.appliance.store.selection import MessageSelection

    chosen = selection_of(logs=logs, address=address, device=device, since=since, until=until, cursor=cursor)
    if chosen.everything and not everything:
        raise click.UsageError("say what: --log, --address, --device, --since, --until, --cursor, or --all")
    if as_json and not yes:
        raise click.UsageError("--json asks nothing: it needs --yes")
    _refuse_running(data)
    with explained():
        wanted = plan(store_path(data), chosen)
    end = chosen == MessageSelection(cursor=cursor) and cursor is not None and is_left(data, cursor)
    if not as_json:
        say(f"{counted(wanted.messages, 'message')}, {size(wanted.bytes)} of bodies, still wanted:")
        for name, count in wanted.groups.items():
            say(f"  {count:,} for {name}")
    if wanted.messages and not yes:
        confirm("Drop them?")
    with explained(), progress("purging", quiet=as_json) as on_progress:
        goes = wanted.messages or end
        done = purge_store(data, chosen, lambda gone: on_progress(gone, wanted.bytes), end=end) if goes else wanted
    if as_json:
        say_json(done, indent=0)
    else:
        say(f"{counted(done.messages, 'message')} dropped, with an entry in the ledger")


@click.command()
@data_option
@click.option("--yes", is_flag=True, help="Do it. Without this only the versions are shown.")
@json_option
def migrate(data: Path, yes: bool, as_json: bool) -> None:
    """Bring the store to this program's schema, and keep a copy of what it was. A newer store is refused.

    The gateway does the same when it starts, without the copy.
    """
    from edge.appliance.store.migration import migrate as migrate_store
    from edge.appliance.store.migration import versions

    with explained():
        found = versions(data)
        if found.store >= found.program and not as_json:
            say(f"schema {found.store}, this program has {found.program}: nothing to do")
        if not yes and found.store <= found.program:
            if as_json:
                say_json(found._asdict(), indent=0)
            elif found.store < found.program:
                say(f"schema {found.store}, this program has {found.program}: --yes migrates it, keeping a copy")
            return
        with progress("copying", quiet=as_json) as on_progress:
            done = migrate_store(data, on_progress)
    if as_json:
        copy = None if done.copy is None else str(done.copy)
        say_json({"before": done.before, "after": done.after, "copy": copy}, indent=0)
    elif done.copy is not None:
        say(f"schema {done.before} is {done.after} now; the store as it was: {done.copy}")


@click.command()
@data_option
@click.option("--yes", is_flag=True, help="Do it. Without this the command shows what it would do.")
@json_option
def repair(data: Path, yes: bool, as_json: bool) -> None:
    """Make a sound store of a damaged one: everything that passes its checks is kept, the loss ledger has the rest.

    The gateway must be stopped, and there must be room for two copies; for three where the messages have to be looked
    for in every page. The damaged file is kept beside the new one. A new epoch begins where the sequences given last
    are not known any more. Exit code 4 while the store stays damaged.
    """
    from edge.appliance.store.recovery.repair import repair as repair_store
    from edge.appliance.store.recovery.verification import verify
    from edge.broker.store.sqlite import REPAIRED_NAME

    path = store_path(data)
    with explained():
        if not (data / REPAIRED_NAME).exists():
            with progress("verifying", quiet=as_json) as on_progress:
                sound = not verify(path, on_progress=on_progress).damaged
            if sound:
                say('{"damaged": false}' if as_json else f"{path} is sound: nothing to repair")
                return
        with progress("repairing", quiet=as_json) as on_progress:
            done = repair_store(data, write=yes, on_progress=on_progress)
    if as_json:
        say_json(done, indent=0)
    else:
        say(f"kept: {counted(done.messages, 'message')} in {counted(done.segments, 'segment')}, {size(done.bytes)}")
        say(f"lost: {counted(done.lost_messages, 'message')}, which the loss ledger accounts for")
        for note in done.notes:
            say(f"  {note}")
        if done.epoch:
            say(f"epoch {done.epoch}" + (", a new one" if done.new_epoch else ", as before"))
    if not yes:
        raise CommandError("nothing is changed yet", hint="--yes does what is said above", code=Exit.INTEGRITY)
    with explained():
        left = [finding for finding in verify(path).findings if finding.damage]
    if left:
        raise CommandError(
            f"the repaired store is not sound: {left[0].where}: {left[0].what}",
            hint=f"the store as it was: {done.damaged_copy}",
            code=Exit.INTEGRITY,
        )
    if not as_json:
        say(f"repaired, verified; the store as it was: {done.damaged_copy}")


@click.command("new-epoch")
@data_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def new_epoch(data: Path, yes: bool, as_json: bool) -> None:
    """Say that this store is an older copy that was put back, where no hub can tell.

    A message's name is (epoch, address, sequence). The copy would give the sequences again that its successor gave
    after the copy was made. Under a new epoch no name comes twice: sequences go on, what is in the store keeps its
    names, what comes next has new ones. Do it before the gateway starts on the copy; what was stored since then keeps
    its names. A Waypost hub notices a copy by itself. The gateway must be stopped. Says what it means, and asks.
    """
    from edge.appliance.store.offline import offline
    from edge.appliance.store.recovery.inspection import Inspection

    if as_json and not yes:
        raise click.UsageError("--json asks nothing: it needs --yes")
    _refuse_running(data)
    with explained(), Inspection.open(store_path(data)) as inspection:
        before = inspection.epochs(inspection.meta("epoch") or "").current
    if not as_json:
        say(f"epoch {before}: messages in the store keep it, new ones get another")
        say("needed after an older copy was put back: a hub would drop new messages whose numbers it has seen")
    if not yes:
        confirm("Begin a new epoch?")
    with explained(), offline(data) as opened:
        opened.store.lineage.begin_epoch()
        after = opened.store.lineage.epochs.current
    if as_json:
        say_json({"before": before, "after": after}, indent=0)
    else:
        say(f"epoch {after} from now on")


def _refuse_running(data: Path) -> None:
    """Before anything is asked: a yes that cannot be acted on is a question too many. Raises CommandError."""
    if is_held(data):
        raise CommandError(f"{data} is in use", hint="stop the gateway first: this changes the store")


COMMANDS: Final = (import_, purge, migrate, repair, new_epoch)
"""For the group in `cli`."""
