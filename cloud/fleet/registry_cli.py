"""`waypost hub backup | restore | move-registry | migrate`. Heavy modules are imported when a command runs, so that
`--help` is fast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloud.fleet.place import HubPlace, config_option, data_option, hub_of
from cloud.place.option import PlaceOption
from cloud.place.place import LakePlace, parse
from edge.output.amounts import counted, size
from edge.output.errors import CommandError, Exit
from edge.output.terminal import say
from edge.output.text import word

if TYPE_CHECKING:
    import sqlalchemy as sa

    from cloud.hub.backup import BackupSummary
    from cloud.hub.configuration import HubSettings

NO_FILES = "no files of a data directory"
NAMES_SHOWN_MAX = 5
"""Gateways named in one line."""

passphrase_option = click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with the passphrase on its first line. Without it the terminal asks.",
)
optional_data = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="The hub's data directory; not needed if --config names a registry.",
)


@click.command()
@optional_data
@config_option
@passphrase_option
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def backup(data: Path | None, config: Path | None, passphrase_file: Path | None, file: Path) -> None:
    """Write a hub into an encrypted file.

    These are its registry, users and authority. Hubs may run. The file has the key of the authority of the data
    directory. The lake is not in it: copy its bucket or folder after this backup. Without the passphrase the file is
    worth nothing: keep it elsewhere.
    """
    from cloud.hub.backup import write_backup

    with _registry(data, config) as registry:
        summary = write_backup(file, data, registry, _passphrase(passphrase_file, confirm=True))
    say(f"{file}: {_content(summary)}; {size(file.stat().st_size)}")


@click.command()
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), required=True, help="Data directory of the hub."
)
@config_option
@click.option(
    "--lake", metavar="PLACE", type=PlaceOption(), help="Lake of the hub, as for `waypost hub run`. Default: DATA/lake."
)
@passphrase_option
@click.option("--check", is_flag=True, help="Only read the file, and say what is in it.")
@click.option("--replace", is_flag=True, help="Replace the registry and the authority that are there.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
def restore(
    data: Path,
    config: Path | None,
    lake: LakePlace | None,
    passphrase_file: Path | None,
    check: bool,
    replace: bool,
    file: Path,
) -> None:
    """Restore a backup of a hub. No hub of its registry may run.

    The registry is older than the lake then. The command compares them: what the lake has beyond the backup is read
    back before more lands, so nothing lands twice and nothing is left out.
    """
    from cloud.hub.backup import check_backup, restore_backup
    from cloud.hub.data import data_directory
    from cloud.hub.opening import LAKE, REGISTRY
    from cloud.hub.registry.location import sqlite_url

    with _errors():
        settings = _settings(config)
        passphrase = _passphrase(passphrase_file, confirm=False)
        if check:
            say(f"{file} is complete: {_content(check_backup(file, passphrase))}")
            return
        with data_directory(data):
            registry = settings.registry or sqlite_url(data.absolute() / REGISTRY)
            place = lake or (parse(settings.lake) if settings.lake is not None else parse(str(data / LAKE)))
            restored = restore_backup(file, passphrase, data, registry, place, replace=replace)
    say(f"{data}: restored {_content(restored.summary)}")
    if restored.beyond:
        what = counted(restored.beyond, "writer")
        say(f"The lake has later commits of {what}: hubs read back what has landed of each gateway that connects.")
    if restored.unknown_gateways:
        names = sorted(name for _, name in restored.unknown_gateways)
        shown = ", ".join(names[:NAMES_SHOWN_MAX]) + (", …" if len(names) > NAMES_SHOWN_MAX else "")
        say(f"Messages of gateways are in the lake that the backup does not know: {shown}. They enrol again.")
    say("Later changes are lost: tokens used since then work again (waypost token list, waypost token revoke),")
    say("and gateways revoked since then may return (waypost gateway revoke).")
    say(f"Start it: waypost hub run --data {word(data)}")


@click.command("move-registry")
@data_option
@config_option
@click.option(
    "--to",
    "target",
    metavar="URL",
    required=True,
    help="Empty database: postgresql://USER@HOST/DATABASE (its password: PGPASSFILE), or sqlite:////ABSOLUTE/PATH.",
)
def move_registry(data: Path, config: Path | None, target: str) -> None:
    """Move the registry to another database.

    All marks go with it. No hub of it may run. Afterwards hubs refuse the old one and name the new one. An interrupted
    move is repeated.
    """
    from cloud.hub.data import data_directory
    from cloud.hub.registry.location import parse as parse_url
    from cloud.hub.registry.location import redact_url
    from cloud.hub.registry.moving import move_registry as move

    with _registry(data, config) as registry, data_directory(data):
        url = parse_url(target)
        if url.password is not None:
            hint = "leave it out, and set PGPASSWORD or PGPASSFILE"
            raise CommandError("a password in --to is visible to others", hint, error="wrong-usage", code=Exit.USAGE)
        counts = move(registry, url)
    say(f"{counted(sum(counts.values()), 'row')} moved to {redact_url(url)}")
    say("Set `registry` of the hub's configuration to it before the hub starts.")


@click.command()
@optional_data
@config_option
@click.option("--check", is_flag=True, help="Only show what would be done. Exit code 1 if there is something.")
def migrate(data: Path | None, config: Path | None, check: bool) -> None:
    """Give the registry the tables of this version. Hubs may run; they do it at their start too.

    Tables and columns are added only, so hubs of the version before continue, and start again on it if need be.
    """
    from cloud.hub.registry.migration import migrate_registry, plan_migration

    with _registry(data, config) as registry:
        plan = plan_migration(registry) if check else migrate_registry(registry)
    if plan.is_done:
        say(f"schema {plan.found}: nothing to do for this version (schema {plan.wanted})")
        return
    begin = "empty" if plan.found is None else f"schema {plan.found}"
    say(f"{begin}: {'to be migrated' if check else 'migrated'} to schema {plan.wanted}")
    for each in plan.additions:
        say(f"  add {each}")
    say(f"programs of schema {plan.lowest} or later can use it")
    if check:
        click.get_current_context().exit(int(Exit.FAILED))


def _content(summary: BackupSummary) -> str:
    from edge.output.times import moment

    rows = counted(sum(summary.rows.values()), "row")
    return f"{rows} of {moment(summary.manifest.made_at)}, {', '.join(sorted(summary.files)) or NO_FILES}"


def _passphrase(file: Path | None, *, confirm: bool) -> str:
    from cloud.hub.backup import require_passphrase

    if file is None:
        found = click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    else:
        found = file.read_text("utf-8").partition("\n")[0].rstrip("\r")
    return require_passphrase(str(found))


@contextlib.contextmanager
def _registry(data: Path | None, config: Path | None) -> Iterator[sa.URL]:
    """Yield the URL of a hub's registry. Raises CommandError, also for errors in the body."""
    with _errors():
        if data is not None:
            with hub_of(HubPlace(data, config)) as (_, registry):
                yield registry
            return
        found = _settings(config).registry
        if found is None:
            hint = "give --data, or --config with a registry"
            raise CommandError("no registry is named", hint, error="wrong-usage", code=Exit.USAGE)
        yield found


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raise CommandError for errors of the backup, the registry and the lake."""
    from bridge.resources.errors import ConfigurationRejected
    from cloud.hub.backup import BackupError
    from cloud.hub.data import DataError
    from cloud.hub.registry.faults import RegistryUnreachable
    from cloud.lake.faults import LakeError, RegistryError

    try:
        yield
    except BackupError as error:
        raise CommandError(str(error), error="backup-refused", code=Exit.USAGE) from None
    except ConfigurationRejected as error:
        raise CommandError(str(error), error="configuration-rejected", code=Exit.USAGE) from None
    except DataError as error:
        raise CommandError(str(error), error="hub-not-started", code=Exit.USAGE) from None
    except RegistryError as error:
        code = Exit.UNREACHABLE if isinstance(error, RegistryUnreachable) else Exit.FAILED
        raise CommandError(str(error), error="registry-failed", code=code) from None
    except LakeError as error:
        raise CommandError(str(error), error="lake-not-readable") from None
    except OSError as error:
        what = f"{error.filename}: {error.strerror}"
        raise CommandError(what, error="file-not-accessible", code=Exit.USAGE) from None


def _settings(config: Path | None) -> HubSettings:
    """Return the settings of a hub. Raises `ConfigurationRejected`."""
    from cloud.hub.configuration import HubSettings, load

    return load(config) if config is not None else HubSettings()
