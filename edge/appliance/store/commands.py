"""Commands that change a store: `import`, `purge`, `migrate`, `repair`, `new-epoch`. The gateway must be stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from edge.appliance.store.shared import (
    confirm,
    data_option,
    explained,
    progress,
    selection_of,
    store_path,
)
from edge.broker.store.lock import is_held
from edge.output.amounts import counted, size
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import say


@click.command("import")
@data_option
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.ndjson")
@click.option("--dev", is_flag=True, help="Use the addresses of `waypost run --dev`.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True),
    help="YAML file of resources, instead of the applied ones.",
)
@click.option("--again", is_flag=True, help="Import the file although it was imported before.")
@json_option("store-import")
def import_(data: Path, source: Path, dev: bool, config: Path | None, again: bool, as_json: JsonOutput | None) -> None:
    """Publish the messages of an NDJSON file. They go to their addresses, as new messages.

    The gateway must be stopped. Lines are those of `export`; `address` and a body (`text`, `json`, `base64`) suffice.
    Device and time of reception are kept; sequences are new. After an interruption run it again: it continues where it
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
        raise CommandError(
            str(refused), hint="give --dev, or --config FILE", code=Exit.USAGE, error="configuration-rejected"
        ) from None
    except ConfigurationRejected as rejected:
        raise CommandError(
            "\n".join(map(str, rejected.errors)), code=Exit.USAGE, error="configuration-rejected"
        ) from None
    except RepositoryError as error:
        raise CommandError(str(error), error="configuration-not-readable") from None
    with explained(), progress("importing", quiet=as_json is not None) as on_progress:
        done = import_messages(data, source, configuration, on_progress, again=again)
    if as_json:
        as_json.show([done])
        return
    say(f"{source}: {counted(done.messages, 'message')} stored")
    if done.skipped:
        say(f"  {counted(done.skipped, 'line')} imported before; --again imports them again")
    if done.unwanted:
        say(f"  {counted(done.unwanted, 'message')} not kept: no queue and no subscription for the address")


@click.command()
@data_option
@click.option("--log", "logs", multiple=True, metavar="NAME", help="Only this log (repeatable; see `info`).")
@click.option("--address", metavar="FILTER", help="Only addresses that match this filter.")
@click.option("--device", metavar="NAME", help="Only messages of this device.")
@click.option("--since", metavar="TIME", help="Only messages received since: an age (2h, 7d) or 2026-11-21T08:00.")
@click.option("--until", metavar="TIME", help="Only messages received before: 7d purges messages older than a week.")
@click.option("--cursor", metavar="NAME", help="Only for this consumer group; others keep their messages.")
@click.option("--all", "everything", is_flag=True, help="All messages.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("store-purge")
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
    as_json: JsonOutput | None,
) -> None:
    """Drop messages that are not acknowledged yet. The loss ledger lists them, and is sent to the hub.

    The gateway must be stopped. The command shows what would be dropped, and asks. With only --cursor, of a forwarder
    that is no longer configured, no messages are kept for it from then on.
    """
    from edge.appliance.store.forwarders import is_left
    from edge.appliance.store.purge import plan
    from edge.appliance.store.purge import purge as purge_store
    from edge.appliance.store.selection import StoreSelection

    chosen = selection_of(logs=logs, address=address, device=device, since=since, until=until, cursor=cursor)
    if chosen.is_unlimited and not everything:
        raise click.UsageError("select messages: --log, --address, --device, --since, --until, --cursor, or --all")
    if as_json and not yes:
        raise click.UsageError("--json cannot ask for confirmation: add --yes")
    _refuse_running(data)
    with explained():
        wanted = plan(store_path(data), chosen)
    end = chosen == StoreSelection(cursor=cursor) and cursor is not None and is_left(data, cursor)
    if not as_json:
        say(f"{counted(wanted.messages, 'message')}, {size(wanted.bytes)} of bodies, not acknowledged:")
        for name, count in wanted.groups.items():
            say(f"  {count:,} for {name}")
    if wanted.messages and not yes:
        confirm("Drop them?")
    with explained(), progress("purging", quiet=as_json is not None) as on_progress:
        needed = wanted.messages or end
        done = purge_store(data, chosen, lambda gone: on_progress(gone, wanted.bytes), end=end) if needed else wanted
    if as_json:
        as_json.show([done])
    else:
        say(f"{counted(done.messages, 'message')} dropped, with an entry in the ledger")


@click.command()
@data_option
@click.option("--yes", is_flag=True, help="Migrate. Without this only the versions are shown.")
@json_option("store-migration")
def migrate(data: Path, yes: bool, as_json: JsonOutput | None) -> None:
    """Migrate the store to this version. It keeps a copy; a newer store is refused.

    The gateway does the same when it starts, without a copy.
    """
    from edge.appliance.store.migration import migrate as migrate_store
    from edge.appliance.store.migration import versions

    with explained():
        found = versions(data)
        if found.store >= found.program and not as_json:
            say(f"schema {found.store}, this program has {found.program}: nothing to do")
        if not yes and found.store <= found.program:
            if as_json:
                as_json.show([found._asdict()])
            elif found.store < found.program:
                say(f"schema {found.store}, this program has {found.program}: --yes migrates it, keeping a copy")
            return
        with progress("copying", quiet=as_json is not None) as on_progress:
            done = migrate_store(data, on_progress)
    if as_json:
        copy = None if done.copy is None else str(done.copy)
        as_json.show([{"before": done.before, "after": done.after, "copy": copy}])
    elif done.copy is not None:
        say(f"schema {done.before} migrated to {done.after}; copy of the old store: {done.copy}")


@click.command()
@data_option
@click.option("--yes", is_flag=True, help="Repair. Without this the command shows what it would do.")
@json_option("store-repair")
def repair(data: Path, yes: bool, as_json: JsonOutput | None) -> None:
    """Repair a damaged store. What passes its checks is kept; the rest is entered into the loss ledger.

    The gateway must be stopped. It needs free space for two copies, or for three when all pages have to be searched.
    The damaged file is kept next to the new one. A new epoch starts if the last sequences are no longer known. Exit
    code 4 while the store is damaged.
    """
    from edge.appliance.store.recovery.repair import repair as repair_store
    from edge.appliance.store.recovery.verification import verify
    from edge.broker.store.sqlite import REPAIRED_NAME

    path = store_path(data)
    with explained():
        if not (data / REPAIRED_NAME).exists():
            with progress("verifying", quiet=as_json is not None) as on_progress:
                intact = not verify(path, on_progress=on_progress).damaged
            if intact:
                if as_json:
                    as_json.show([])
                else:
                    say(f"{path} is not damaged: nothing to repair")
                return
        with progress("repairing", quiet=as_json is not None) as on_progress:
            done = repair_store(data, write=yes, on_progress=on_progress)
    if as_json:
        as_json.show([done])
    else:
        say(f"kept: {counted(done.messages, 'message')} in {counted(done.segments, 'segment')}, {size(done.bytes)}")
        say(f"lost: {counted(done.lost_messages, 'message')}, which the loss ledger accounts for")
        for note in done.notes:
            say(f"  {note}")
        if done.epoch:
            say(f"epoch {done.epoch}" + (", a new one" if done.new_epoch else ", unchanged"))
    if not yes:
        raise CommandError(
            "nothing was changed yet", hint="--yes makes these changes", code=Exit.INTEGRITY, error="store-damaged"
        )
    with explained():
        left = [finding for finding in verify(path).findings if finding.damage]
    if left:
        raise CommandError(
            f"the repaired store is still damaged: {left[0].where}: {left[0].what}",
            hint=f"the damaged store: {done.damaged_copy}",
            code=Exit.INTEGRITY,
            error="store-damaged",
        )
    if not as_json:
        say(f"repaired and verified; the damaged store: {done.damaged_copy}")


@click.command("new-epoch")
@data_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("epoch")
def new_epoch(data: Path, yes: bool, as_json: JsonOutput | None) -> None:
    """Start a new epoch after a restored copy. Use it when an older copy of the store was restored.

    A message's name is (epoch, address, sequence). A restored copy would give out again the sequences that were used
    after the copy was made. In a new epoch no name is used twice: sequences continue, stored messages keep their names,
    new ones have the new epoch. Run it before the gateway starts on the copy: messages stored earlier keep their names.
    A Waypost hub detects a restored copy by itself; other peers do not. The gateway must be stopped. The command
    explains the change, and asks.
    """
    from edge.appliance.store.offline import offline
    from edge.appliance.store.recovery.inspection import Inspection

    if as_json and not yes:
        raise click.UsageError("--json cannot ask for confirmation: add --yes")
    _refuse_running(data)
    with explained(), Inspection.open(store_path(data)) as inspection:
        before = inspection.epochs(inspection.meta("epoch") or "").current
    if not as_json:
        say(f"epoch {before}: stored messages keep it, new ones get another")
        say("needed after an older copy was restored: a hub would drop new messages with numbers it has seen")
    if not yes:
        confirm("Start a new epoch?")
    with explained(), offline(data) as opened:
        opened.store.lineage.begin_epoch()
        after = opened.store.lineage.epochs.current
    if as_json:
        as_json.show([{"before": before, "after": after}])
    else:
        say(f"epoch {after} from now on")


def _refuse_running(data: Path) -> None:
    """Raise CommandError when the gateway runs, before the user is asked."""
    if is_held(data):
        raise CommandError(
            f"{data} is in use", hint="stop the gateway first: this changes the store", error="store-in-use"
        )


COMMANDS: Final = (import_, purge, migrate, repair, new_epoch)
"""Commands for the group in `cli`."""
