"""`waypost apply | get | describe | diff | delete`: manage the resources of one data directory.

A running gateway applies a change by itself, a stopped one when it starts. Errors in a configuration are printed one a
line (``file:line: path: what``), with exit code 2; nothing is then applied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.decorators import FC

from bridge.resources.completion import json_schema
from bridge.resources.diff import masked, unified
from bridge.resources.effects import restarts
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.parse import read, to_yaml
from bridge.resources.plan import ResourceChange
from bridge.resources.resource import Resource, ResourceKind
from bridge.resources.schema import suggestion
from edge.appliance.program import as_called
from edge.broker.store.lock import is_held
from edge.configuration.effective import build_configuration, exposure, notices
from edge.configuration.file import RepositoryError
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from edge.configuration.resources import (
    AddressSpaceSpec,
    AddressSpec,
    ArtefactsSpec,
    DeviceSpec,
    GatewaySpec,
    MessagingUserSpec,
    SystemSpec,
    TenantSpaceSpec,
)
from edge.output.amounts import counted
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, json_option, print_listing
from edge.output.terminal import say, say_json
from edge.output.text import word

EMPTY: Final = "a resource is a YAML document with apiVersion, kind, metadata and spec; nothing was applied"


def _existing(_context: click.Context, _parameter: click.Parameter, data: Path) -> Path:
    if not data.is_dir():
        raise CommandError(
            f"data directory {data} not found",
            hint=f"give the directory of a gateway; `waypost apply --data {word(data)} -f FILE` creates one",
            code=Exit.USAGE,
            error="no-data-directory",
        )
    return data


def _data_option(**more: Any) -> Callable[[FC], FC]:
    return click.option(
        "--data",
        "data",
        required=True,
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Data directory of the gateway.",
        **more,
    )


data_option = _data_option()
existing_data_option = _data_option(callback=_existing)
files_option = click.option(
    "-f", "--filename", "names", multiple=True, metavar="FILE|DIR|-", help="YAML to read; repeatable, - is stdin."
)


class KindWord(click.ParamType[ResourceKind]):
    """Name of a kind as users write it: ``Address``, ``addresses``, ``addr``."""

    name = "kind"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ResourceKind:
        """Return the kind of this name."""
        if isinstance(value, ResourceKind):
            return value
        word = str(value).lower()
        found = next((kind for kind in KINDS if word in kind.words), None)
        if found is None:
            known = [kind.words[0] for kind in KINDS]
            self.fail(f'"{value}" is not a kind{suggestion(word, known)}', param, ctx)
        return found


RESOURCES: Final = Listing("resource", "resource", ("kind", "name"))

kind_argument = click.argument("kind", type=KindWord(), metavar="KIND")


@click.command()
@data_option
@files_option
@json_option("change")
@click.option(
    "--local", is_flag=True, help="Also replace resources that the hub manages, until the hub's next version."
)
@click.option("--dry-run", is_flag=True, help="Check everything and show what would change; write nothing.")
def apply(data: Path, names: Sequence[str], as_json: JsonOutput | None, local: bool, dry_run: bool) -> None:
    """Apply resources from YAML. All of them are applied, or none when anything is wrong.

    A resource of the same kind and name is replaced as a whole, others stay: to add to one, begin with `waypost get
    KIND NAME -o yaml`. Notes name connectors and forwarders that end. Resources that the hub manages are refused.
    Stored messages are never touched.
    """
    if not names:
        raise click.UsageError("nothing to apply: -f FILE, -f DIR or -f -")
    repository = Repository(data)
    before = _in_force(repository)
    with explained("applied"):
        resources = read(KINDS, names)
        if not resources:
            raise CommandError(
                f"{', '.join(names)}: no resource found", hint=EMPTY, code=Exit.USAGE, error="no-resources"
            )
        if dry_run:
            changes = repository.plan(resources, keep=local)
            version = repository.version
        else:
            version, changes = repository.apply(resources, keep=local)
        applied = {(one.kind, one.name): one for one in (*repository.load().resources, *resources)}
    after = list(applied.values())
    notes = [*_ends(data, before, after), *notices(resources), *exposure(after), *_restarts(data, before, after)]
    print_changes(changes, version, as_json, " (dry run)" if dry_run else "", notes)


@click.command()
@existing_data_option
@click.argument("kind", type=KindWord(), metavar="[KIND]", required=False)
@click.argument("name", required=False)
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "yaml", "json", "csv", "name"]),
    default="table",
    show_default=True,
    help="Form of the output; YAML can be applied again.",
)
@json_option("resource")
def get(data: Path, kind: ResourceKind | None, name: str | None, form: str, as_json: JsonOutput | None) -> None:
    """List applied resources. All are listed, those of a KIND, or one by NAME. YAML output can be applied again."""
    with explained("read"):
        known = Repository(data).load()
        resources = _select(known.resources, kind, name)
    if as_json or form == "json":
        JsonOutput("resource").show([resource.document for resource in resources])
    elif form in ("csv", "name"):
        rows = [{"kind": one.kind, "name": one.name, "resource": f"{one.kind}/{one.name}"} for one in resources]
        print_listing(RESOURCES, rows, form)
    elif form == "yaml":
        say("---\n".join(to_yaml(resource.document) for resource in resources), nl=False)
    else:
        _print_tables(resources)
        shown = [each for each in known.managed if each in {f"{one.kind}/{one.name}" for one in resources}]
        if shown:
            say(f"note: the hub manages {', '.join(shown)}", style="yellow", err=True)


@click.command()
@existing_data_option
@kind_argument
@click.argument("name")
@json_option("resource")
def describe(data: Path, kind: ResourceKind, name: str, as_json: JsonOutput | None) -> None:
    """Show one resource in full. Secrets are left out; fields that this version ignores are named."""
    with explained("read"):
        [resource] = _select(Repository(data).load().resources, kind, name)
    notes = notices([resource])
    if as_json:
        as_json.show([masked(KINDS, resource.document)], notes=notes)
        return
    say(to_yaml(masked(KINDS, resource.document)), nl=False)
    for note in notes:
        say(as_called(f"# note: {note}"))


@click.command()
@data_option
@files_option
@json_option("change")
@click.option("--exit-code", is_flag=True, help="Exit with 1 when there are differences, for scripts.")
def diff(data: Path, names: Sequence[str], as_json: JsonOutput | None, exit_code: bool) -> None:
    """Show what `apply` would change. The output is a unified diff of YAML."""
    if not names:
        raise click.UsageError("nothing to compare: -f FILE, -f DIR or -f -")
    with explained("compared"):
        changes = Repository(data).plan(read(KINDS, names))
    differing = [change for change in changes if change.before != change.after]
    if as_json:
        as_json.show([_change_data(change, documents=True) for change in differing])
    else:
        for change in differing:
            say(unified(KINDS, change), nl=False)
    if exit_code and differing:
        click.get_current_context().exit(int(Exit.FAILED))


@click.command()
@existing_data_option
@files_option
@json_option("change")
@click.argument("kind", type=KindWord(), metavar="[KIND]", required=False)
@click.argument("resource_names", nargs=-1, metavar="[NAME]...")
def delete(
    data: Path,
    names: Sequence[str],
    as_json: JsonOutput | None,
    kind: ResourceKind | None,
    resource_names: Sequence[str],
) -> None:
    """Delete resources. Name them by KIND and NAME, or by a file. Stored messages are never touched."""
    if bool(names) == bool(kind) or (kind is not None and not resource_names):
        raise click.UsageError("name what to delete: KIND NAME..., or -f FILE")
    repository = Repository(data)
    before = _in_force(repository)
    with explained("deleted"):
        keys = [resource.key for resource in read(KINDS, names)]
        if kind is not None:
            keys += [(kind.name, name) for name in resource_names]
        own = {resource.key for resource in repository.own()}
        managed = repository.load().managed
        for key in keys:
            if key not in own and "/".join(key) in managed:
                raise CommandError(
                    f"the hub manages {'/'.join(key)}; this gateway has none of its own to delete",
                    error="resource-of-hub",
                )
            if key not in own:
                raise _absent(*key, [name for of_kind, name in own if of_kind == key[0]])
        version, changes = repository.delete(keys)
        left = repository.load().resources
    print_changes(changes, version, as_json, "", _restarts(data, before, left))


@click.command()
def schema() -> None:
    """Print the JSON schema of resources. Editors complete and check YAML with it.

    \b
      waypost schema > gateway.schema.json
    and first in the YAML, for yaml-language-server (VS Code, Neovim and others):
      # yaml-language-server: $schema=gateway.schema.json
    """
    say_json(json_schema(KINDS))


def _in_force(repository: Repository) -> Sequence[Resource] | None:
    """Return the applied resources; None when they cannot be read: the change then reports the error."""
    try:
        return repository.load().resources
    except (ConfigurationRejected, RepositoryError):
        return None


def _ends(data: Path, before: Sequence[Resource] | None, after: Sequence[Resource]) -> list[str]:
    """Return notes on connectors and forwarders that the change removes, for example one to the hub that a replaced
    Address had, with the messages that wait for them."""
    if not before:
        return []
    from edge.appliance.crossing.plan import changes, waiting_in  # noqa: PLC0415 - only where resources change

    def removed(waiting: Mapping[str, int]) -> list[str]:
        every = changes(build_configuration(before), build_configuration(after), waiting)
        return [each.sentence for each in every if each.change == "removed"]

    notes = removed({})
    if notes:
        with contextlib.suppress(CommandError):  # the change is made; a store that cannot be read has its own problem
            notes = removed(waiting_in(data))
    return notes


def _restarts(data: Path, before: Sequence[Resource] | None, after: Sequence[Resource]) -> list[str]:
    """Return notes on changes that a running gateway applies only at its next start."""
    if not before or not is_held(data):
        return []
    return restarts(KINDS, before, after)


@contextlib.contextmanager
def explained(participle: str) -> Iterator[None]:
    """Turn errors of parsing and of the repository into errors of the command line."""
    try:
        yield
    except ConfigurationRejected as why:
        hint = f"{counted(len(why.errors), 'problem')}; nothing was {participle}"
        raise CommandError(f"{why}", hint=hint, code=Exit.USAGE, error="configuration-rejected") from why
    except RepositoryError as why:
        raise CommandError(str(why), error="configuration-not-readable") from why


def _select(resources: Sequence[Resource], kind: ResourceKind | None, name: str | None) -> list[Resource]:
    chosen = [resource for resource in resources if kind is None or resource.kind == kind.name]
    if kind is None or name is None:
        return chosen
    named = [resource for resource in chosen if resource.name == name]
    if not named:
        raise _absent(kind.name, name, [resource.name for resource in chosen])
    return named


def _absent(kind: str, name: str, others: Sequence[str]) -> CommandError:
    return CommandError(f'{kind} "{name}" not found{suggestion(name, sorted(others)[:10])}', error="resource-not-found")


def print_changes(
    changes: Sequence[ResourceChange],
    version: int,
    as_json: JsonOutput | None,
    suffix: str = "",
    notes: Sequence[str] = (),
) -> None:
    """Print the changes, and the resulting version of the configuration."""
    if as_json:
        listed = [_change_data(change, documents=False) for change in changes]
        as_json.show(listed, version=version, notes=list(notes))
        return
    for change in changes:
        say(f"{change.kind}/{change.name} {change.verb}{suffix}")
    say(f"configuration version {version}{suffix}")
    for note in notes:
        say(as_called(f"note: {note}"), style="yellow", err=True)


def _change_data(change: ResourceChange, *, documents: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": change.kind, "name": change.name, "change": change.verb}
    if documents:
        before, after = (document and masked(KINDS, document) for document in (change.before, change.after))
        data |= {"before": before, "after": after}
    return data


# --- tables ----------------------------------------------------------------------------------------------------------

Row = tuple[str, ...]


def _gateway_row(spec: GatewaySpec) -> Row:
    listeners = spec.listeners
    places = (str(place) if place else "-" for place in (listeners.mqtt, listeners.amqp, listeners.http))
    return (*places, spec.hub.url if spec.hub else "-")


def _space_row(spec: AddressSpaceSpec) -> Row:
    return (spec.type.value, spec.default_type.value, ", ".join(part.name for part in spec.connectors) or "-")


def _tenant_row(spec: TenantSpaceSpec) -> Row:
    return (", ".join(spec.hosts), str(spec.quota_bytes), ", ".join(part.name for part in spec.connectors) or "-")


def _address_row(spec: AddressSpec) -> Row:
    forwarders = (f"{part.direction.value} {part.remote_address}" for part in spec.forwarders)
    return (spec.address, spec.type.value, ", ".join(forwarders) or "-")


def _user_row(spec: MessagingUserSpec) -> Row:
    return (spec.username, spec.authentication.type.value)


def _device_row(spec: DeviceSpec) -> Row:
    return ("yes" if spec.enabled else "no", ", ".join(spec.via) or "-")


def _artefacts_row(spec: ArtefactsSpec) -> Row:
    return (str(len(spec.trusted_keys)), ", ".join(f"{each.name} {each.version}" for each in spec.artefacts) or "-")


def _system_row(spec: SystemSpec) -> Row:
    return (spec.version, spec.url)


COLUMNS: Final[dict[str, tuple[Row, Callable[[Any], Row]]]] = {
    "Gateway": (("MQTT", "AMQP", "HTTP", "HUB"), _gateway_row),
    "AddressSpace": (("TYPE", "DEFAULT", "CONNECTORS"), _space_row),
    "TenantSpace": (("HOSTS", "QUOTA", "CONNECTORS"), _tenant_row),
    "Address": (("ADDRESS", "TYPE", "FORWARDERS"), _address_row),
    "MessagingUser": (("USERNAME", "AUTHENTICATION"), _user_row),
    "Device": (("ENABLED", "VIA"), _device_row),
    "Artefacts": (("KEYS", "ARTEFACTS"), _artefacts_row),
    "System": (("VERSION", "URL"), _system_row),
}


def _print_tables(resources: Sequence[Resource]) -> None:
    if not resources:
        say("nothing applied", err=True)
        return
    for kind, (titles, row) in COLUMNS.items():
        chosen = [resource for resource in resources if resource.kind == kind]
        if chosen:
            rows = [(kind.upper(), *titles), *((resource.name, *row(resource.spec)) for resource in chosen)]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for cells in rows:
                say("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
