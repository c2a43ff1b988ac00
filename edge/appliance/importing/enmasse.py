"""Import resources of EnMasse, as ``kubectl get addressspaces,addresses,messagingusers -o yaml`` prints them.

A gateway has the same kinds and field names, so a document is taken as it is. What differs in form is changed; what the
gateway refuses is removed, and the report has its reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from bridge.hidden import hides
from bridge.resources.document import documents
from bridge.resources.errors import ConfigurationError, ResourceOrigin
from bridge.resources.schema import build
from edge.appliance.importing.report import ImportedConfiguration, ImportNote, ImportOutcome
from edge.appliance.importing.text_file import ImportFileError, read_text
from edge.configuration.first_gateway import SPACE
from edge.configuration.kinds import KINDS

SPACE_KIND: Final = "AddressSpace"
SPACE_OPERATIONS: Final = ("view", "manage")
"""Operations of a rule that are not on addresses."""
TAKEN: Final = (SPACE_KIND, "Address", "MessagingUser")
ROUNDS_MAX: Final = 10
"""Rounds of removing what is refused: a part that is removed may have been the only one of another."""
PREFIX: Final = re.compile(r"(.+/)?\*")
"""Filter of EnMasse that an MQTT filter can express: everything, or everything below a level."""
IMPORTED, CHANGED = ImportOutcome.IMPORTED, ImportOutcome.CHANGED
LEFT_OUT, NOT_NEEDED = ImportOutcome.LEFT_OUT, ImportOutcome.NOT_NEEDED
_STEP: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


@hides("content")
class EnmasseDocument(NamedTuple):
    """Document with its place."""

    place: str
    """``file:line``."""
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.content.get("kind"))

    @property
    def name(self) -> str:
        """Name of the resource; empty without one."""
        metadata = self.content.get("metadata")
        return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""

    def note(self, outcome: ImportOutcome, words: str = "", path: str = "") -> ImportNote:
        """Return the result for this document, or for a part of it."""
        return ImportNote(self.place, f"{self.kind} {self.name}" + (f" {path}" if path else ""), outcome, words)


def import_enmasse(path: Path, space: str = "") -> ImportedConfiguration:
    """Return the resources of one address space. `space`: its name, if there are several. Raises ImportFileError."""
    found = list(_documents(path))
    spaces = [each.name for each in found if each.kind == SPACE_KIND]
    if space and space not in spaces:
        raise ImportFileError(f"{path} has no address space {space}; it has: {', '.join(spaces) or 'none'}")
    if len(spaces) > 1 and not space:
        raise ImportFileError(f"{path} has several address spaces: name one with --space ({', '.join(spaces)})")
    chosen = space or (spaces[0] if spaces else "")
    made: list[dict[str, Any]] = []
    notes: list[ImportNote] = []
    for each in found:
        if each.kind not in TAKEN:
            notes.append(each.note(NOT_NEEDED, "it is of EnMasse's own installation"))
        elif chosen and each.name.partition(".")[0] != chosen:
            notes.append(each.note(LEFT_OUT, f"it is not of the address space {chosen}"))
        else:
            document = _changed(each, notes)
            if _without_refused(each, document, notes):
                notes.append(each.note(IMPORTED))
                made.append(document)
    return ImportedConfiguration(made, notes)


# --- inside -----------------------------------------------------------------------------------------------------------


def _documents(path: Path) -> Iterator[EnmasseDocument]:
    """Yield the documents of a file, those of a list one by one. Raises ImportFileError."""
    for found in documents(read_text(path).encode(), path.name):
        if isinstance(found, ConfigurationError):
            raise ImportFileError(str(found))
        content = found.value
        if not isinstance(content, dict):
            raise ImportFileError(f"{path.name}:{found.origin.line(())}: a resource is a mapping")
        if not str(content.get("kind")).endswith("List"):
            yield EnmasseDocument(f"{path.name}:{found.origin.line(())}", content)
            continue
        items = content.get("items")
        for i, item in enumerate(items if isinstance(items, list) else []):
            if isinstance(item, dict):
                yield EnmasseDocument(f"{path.name}:{found.origin.line(('items', i))}", item)


def _changed(each: EnmasseDocument, notes: list[ImportNote]) -> dict[str, Any]:
    """Return a document in the form of a gateway."""
    spec = dict(each.content.get("spec") or {})
    own = each.name.partition(".")[2]
    if each.kind == SPACE_KIND:
        _change_space(each, spec, notes)
    elif each.kind == "MessagingUser":
        _change_user(each, spec, notes)
    spec.pop("addressSpace", None)
    return {
        "apiVersion": each.content.get("apiVersion"),
        "kind": each.kind,
        "metadata": {"name": f"{SPACE}.{own}" if own else SPACE},
        "spec": spec,
    }


def _change_space(each: EnmasseDocument, spec: dict[str, Any], notes: list[ImportNote]) -> None:
    service = spec.get("authenticationService")
    if isinstance(service, Mapping) and isinstance(service.get("name"), str):
        name = "none" if service["name"].startswith("none") else "standard"
        spec["authenticationService"] = {"name": name}
        notes.append(each.note(CHANGED, f"{service['name']} becomes {name}", "authenticationService"))
    parts = [part for part in ("endpoints", "networkPolicy") if spec.pop(part, None) is not None]
    notes += [each.note(CHANGED, "a gateway has listeners (resource Gateway)", part) for part in parts]
    connectors = spec.get("connectors")
    if isinstance(connectors, list):
        spec["connectors"] = [_connector(each, one, notes) if isinstance(one, Mapping) else one for one in connectors]


def _connector(each: EnmasseDocument, given: Mapping[str, Any], notes: list[ImportNote]) -> dict[str, Any]:
    """Return a connector with texts as values. Values in a Secret, and certificates, are left out."""
    made: dict[str, Any] = {"type": "amqp", **given}
    made.pop("role", None)
    where = f"connectors {given.get('name', '')}"
    if made.pop("addresses", None) is not None:
        notes.append(
            each.note(LEFT_OUT, "name the remote address in a forwarder: CONNECTOR/ADDRESS", f"{where} addresses")
        )
    if isinstance(tls := made.get("tls"), Mapping):
        made["tls"] = {name: value for name, value in tls.items() if isinstance(value, str)}
        inline = sorted(tls.keys() - made["tls"].keys())
        notes += [each.note(LEFT_OUT, "name a file with it", f"{where} tls.{name}") for name in inline]
    if isinstance(credentials := made.get("credentials"), Mapping):
        texts = {name: _text(value) for name, value in credentials.items()}
        if None in texts.values():
            del made["credentials"]
            notes.append(
                each.note(LEFT_OUT, "they are in a Secret: give username and password", f"{where} credentials")
            )
        else:
            made["credentials"] = texts
    return made


def _text(value: object) -> str | None:
    """Return a value that is given directly; None if it is in a Secret."""
    found = value.get("value") if isinstance(value, Mapping) else value
    return found if isinstance(found, str) else None


def _change_user(each: EnmasseDocument, spec: dict[str, Any], notes: list[ImportNote]) -> None:
    authentication = spec.get("authentication")
    if (
        isinstance(authentication, Mapping)
        and authentication.get("type") == "password"
        and "password" not in authentication
    ):
        words = "its password is not in the file: set spec.authentication.password, in Base64"
        notes.append(each.note(LEFT_OUT, words, "authentication.password"))
    rules = spec.get("authorization")
    if isinstance(rules, list):
        spec["authorization"] = [_rule(each, rule, notes) if isinstance(rule, Mapping) else rule for rule in rules]


def _rule(each: EnmasseDocument, given: Mapping[str, Any], notes: list[ImportNote]) -> dict[str, Any]:
    """Return a rule with MQTT's wildcards: an asterisk at the end of a level is ``#``."""
    addresses = given.get("addresses")
    if not isinstance(addresses, list) or not addresses:
        return _without_addresses(each, given, notes)
    kept: list[str] = []
    for address in map(str, addresses):
        if PREFIX.fullmatch(address):
            kept.append(f"{address[:-1]}#")
        elif "*" in address:
            notes.append(
                each.note(LEFT_OUT, "a filter has wildcards for whole levels: + and #", f"authorization {address}")
            )
        else:
            kept.append(address)
    return {**given, "addresses": kept}


def _without_addresses(each: EnmasseDocument, given: Mapping[str, Any], notes: list[ImportNote]) -> dict[str, Any]:
    """Return a rule with its operations on the space. The others are for no address in EnMasse, and for all here."""
    operations = given.get("operations")
    kept = [name for name in operations if name in SPACE_OPERATIONS] if isinstance(operations, list) else []
    notes.append(
        each.note(LEFT_OUT, "a rule without a list of addresses allows nothing to send or receive", "authorization")
    )
    return {"operations": kept}


def _without_refused(each: EnmasseDocument, document: dict[str, Any], notes: list[ImportNote]) -> bool:
    """Remove what the gateway refuses; return False if the rest cannot be used either."""
    for _ in range(ROUNDS_MAX):
        _drop_empty_rules(document)
        built = build(KINDS, document, ResourceOrigin(each.place, {}))
        if not isinstance(built, list):
            return True
        removed = [each_ for each_ in sorted(built, key=_in_order, reverse=True) if _remove(document, each_.path)]
        notes += [each.note(LEFT_OUT, error.message, error.path.removeprefix("spec.")) for error in removed]
        if not removed:
            notes.append(each.note(LEFT_OUT, "; ".join(error.message for error in built)))
            return False
    return False


def _drop_empty_rules(document: dict[str, Any]) -> None:
    """Drop rules that have lost all their addresses or operations: a rule without addresses is for every address."""
    if isinstance(rules := document["spec"].get("authorization"), list):
        document["spec"]["authorization"] = [
            rule
            for rule in rules
            if not isinstance(rule, Mapping) or [] not in (rule.get("addresses"), rule.get("operations"))
        ]


def _steps(path: str) -> list[str | int]:
    return [int(number) if number else name for number, name in _STEP.findall(path)]


def _in_order(error: ConfigurationError) -> list[tuple[bool, int, str]]:
    """Return the order of the values in a document, so that the last one can be removed first."""
    numbered = ((step, "") if isinstance(step, int) else (0, step) for step in _steps(error.path))
    return [(not name, number, name) for number, name in numbered]


def _remove(document: dict[str, Any], path: str) -> bool:
    """Remove a value by its path; return False if it is not there. Instead of the addresses of a rule, the rule."""
    steps = _steps(path)
    if steps[-1:] == ["addresses"]:
        steps.pop()
    if len(steps) < 2:  # `spec` as a whole: a part that it needs is missing
        return False
    into: Any = document
    try:
        for step in steps[:-1]:
            into = into[step]
        del into[steps[-1]]
    except (KeyError, IndexError, TypeError):
        return False
    return True
