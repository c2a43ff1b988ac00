"""`waypost import`: configurations of other brokers as resources."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from bridge.durable_file import replace_file
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.parse import SUFFIXES, parse, to_yaml
from edge.appliance.importing.report import ImportedConfiguration, ImportOutcome, in_order
from edge.appliance.importing.text_file import ImportFileError
from edge.configuration.kinds import KINDS
from edge.output.amounts import counted
from edge.output.errors import CommandError, Exit
from edge.output.listing import FORMS, Listing, print_listing
from edge.output.system_errors import write_advice
from edge.output.terminal import say
from edge.output.text import word

NOTES: Final = Listing("import", "setting", ("outcome", "place", "setting", "words"), (), "no settings")


@click.command("import")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "-f", "--filename", "target", required=True, metavar="OUT", type=click.Path(path_type=Path, dir_okay=False),
    help="File to write the resources to, in YAML.",
)  # fmt: skip
@click.option(
    "--name", default="gateway", show_default=True, help="Name of the gateway; with EnMasse it is in the file."
)
@click.option("--space", default="", help="Address space to import, of several in a file of EnMasse.")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.option("--all", "everything", is_flag=True, help="List also the settings that were imported or are not needed.")
@click.option("-o", "--output", "form", type=click.Choice(FORMS), default="table", help="Form of the report.")
@click.option("--json", "form", flag_value="json", help="The same as -o json: items of kind `import`.")
def import_configuration(
    source: Path, target: Path, name: str, space: str, force: bool, everything: bool, form: str
) -> None:
    """Import another broker's configuration.

    FILE is a mosquitto.conf, a broker.xml of ActiveMQ Artemis, or resources of EnMasse in YAML. Listeners, users with
    their passwords, rights, limits, addresses and bridges become resources in OUT. Nothing is applied. The report has
    each setting that has no counterpart, or one that differs; read it before you apply OUT:

    \b
      waypost import /etc/mosquitto/mosquitto.conf -f hall.yaml
      waypost import /var/lib/mybroker/etc/broker.xml -f hall.yaml
      kubectl get addressspaces,addresses,messagingusers -o yaml > enmasse.yaml
      waypost import enmasse.yaml -f hall.yaml
      waypost apply --data ./data/hall -f hall.yaml --dry-run
    """
    try:
        found = _import(source, name, space)
    except ImportFileError as why:
        hint = "copy the whole folder of the broker's configuration, or run this as its owner"
        raise CommandError(str(why), hint=hint, code=Exit.USAGE, error="file-not-accessible") from None
    text = "---\n".join(to_yaml(document) for document in found.documents)
    _write(target, text, force=force)
    shown = [each.row for each in in_order(found.notes) if everything or each.outcome in _TO_READ]
    counts = {outcome.value: found.count(outcome) for outcome in ImportOutcome}
    print_listing(NOTES, shown, form, counts=counts)
    _require_valid(text, target)
    if form == "table":
        _conclude(found, target)


# --- inside -----------------------------------------------------------------------------------------------------------

_TO_READ: Final = (ImportOutcome.LEFT_OUT, ImportOutcome.CHANGED)
"""Outcomes that the report lists without `--all`."""


def _import(source: Path, name: str, space: str) -> ImportedConfiguration:
    """Import a file by its name. Raises ImportFileError, CommandError."""
    if source.suffix == ".json":
        what = f"{source} is JSON: a gateway takes no file of that form"
        hint = f"the registry of Eclipse Hono goes to a hub: waypost hub device import {word(str(source))}"
        raise CommandError(what, hint, code=Exit.USAGE, error="invalid-value")
    if source.suffix in SUFFIXES:
        from edge.appliance.importing.enmasse import import_enmasse

        return import_enmasse(source, space)
    if source.suffix == ".xml":
        from edge.appliance.importing.artemis import import_artemis

        return import_artemis(source, name)
    from edge.appliance.importing.mosquitto import import_mosquitto

    return import_mosquitto(source, name)


def _write(target: Path, text: str, *, force: bool) -> None:
    """Write a file that only its owner reads. Raises CommandError."""
    if target.exists() and not force:
        hint = "name another file, or add --force"
        raise CommandError(f"{target} exists", hint=hint, code=Exit.USAGE, error="file-exists")
    try:
        replace_file(target, text.encode())
    except OSError as why:
        raise CommandError(
            f"{target} cannot be written: {why.strerror}", hint=write_advice(why), error="file-not-accessible"
        ) from None


def _require_valid(text: str, target: Path) -> None:
    """Raise CommandError when the resources do not fit together, with each error."""
    try:
        errors = KINDS.validate(parse(KINDS, text, str(target)))
    except ConfigurationRejected as rejected:
        errors = rejected.errors
    if errors:
        raise CommandError(
            "\n".join([f"{target} needs corrections before it can be applied:", *map(str, errors)]),
            hint=f"edit {target}, then: waypost apply --data DIR -f {word(str(target))} --dry-run",
            code=Exit.USAGE,
            error="configuration-rejected",
        )


def _conclude(found: ImportedConfiguration, target: Path) -> None:
    counts = ", ".join(f"{found.count(outcome)} {outcome.value}" for outcome in ImportOutcome)
    say(f"{counted(len(found.notes), 'setting')}: {counts}")
    say(f"{target}: {counted(len(found.documents), 'resource')}; it has secrets, and only you can read it")
    say(f"next: waypost apply --data DIR -f {word(str(target))} --dry-run")
