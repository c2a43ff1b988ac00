"""Addresses and address settings of Artemis, as addresses with their policies.

Artemis merges the settings that match an address, field by field. The more specific one wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bridge.topic_filter import filter_fault
from edge.appliance.importing.artemis_file import XmlElement
from edge.appliance.importing.artemis_policy import FIELDS, FULL, policy_of
from edge.appliance.importing.report import ImportNote, ImportOutcome
from edge.broker.model.topics import covers

IMPORTED, CHANGED = ImportOutcome.IMPORTED, ImportOutcome.CHANGED
LEFT_OUT, NOT_NEEDED = ImportOutcome.LEFT_OUT, ImportOutcome.NOT_NEEDED
MANY_CONSUMERS: Final = 100_000
"""Consumers of an imported subscription without a limit: more than a gateway has connections."""
ANY_LEVEL: Final = "+"
"""Filter for names of one level; every name with dots has one level here."""
OWN_ADDRESSES: Final = ("activemq.management", "activemq.notifications")
"""Addresses by which Artemis is managed."""


class WildcardSyntax(NamedTuple):
    """Marks of matches (`wildcard-addresses`)."""

    delimiter: str = "."
    any_words: str = "#"
    single_word: str = "*"

    def levels(self, name: str) -> str:
        """Return an address or match as levels: with the delimiter and wildcards of MQTT."""
        words = name.split(self.delimiter)
        return "/".join({self.any_words: "#", self.single_word: "+"}.get(word, word) for word in words)

    def is_pattern(self, name: str) -> bool:
        """Return whether a match has wildcards."""
        return not {self.any_words, self.single_word}.isdisjoint(name.split(self.delimiter))


def read_syntax(core: XmlElement) -> WildcardSyntax:
    """Return the marks that a broker uses."""
    given = core.first("wildcard-addresses")
    found = {} if given is None else {each.name.replace("-", "_"): each.text for each in given.inner if each.text}
    return WildcardSyntax(**{name: text for name, text in found.items() if name in WildcardSyntax._fields})


def by_precision(found: Iterable[XmlElement], syntax: WildcardSyntax) -> list[XmlElement]:
    """Return settings from the most general match to the most specific one."""

    def key(element: XmlElement) -> tuple[list[int], int]:
        levels = syntax.levels(element.attributes.get("match", "")).split("/")
        return [{"#": 0, "+": 1}.get(level, 2) for level in levels], len(levels)

    return sorted(found, key=key)


class AddressImport:
    """Import of the addresses of a broker."""

    def __init__(self, core: XmlElement, syntax: WildcardSyntax) -> None:
        self._syntax = syntax
        self._settings = by_precision(
            [each for group in core.of("address-settings") for each in group.of("address-setting")], syntax
        )
        self._declared = [each for group in core.of("addresses") for each in group.of("address")]
        self._notes: list[ImportNote] = []
        self._names = {each.attributes.get("name", "") for each in self._declared}

    @property
    def names(self) -> Sequence[str]:
        """Names of the declared addresses."""
        return sorted(self._names)

    @property
    def default_type(self) -> str:
        """Type of addresses that are not declared (`default-address-routing-type` for every address)."""
        whole = [each for each in self._settings if self._syntax.levels(each.attributes.get("match", "")) == "#"]
        routing = _merged(whole).get("default-address-routing-type")
        return "queue" if routing is not None and routing.text.upper() == "ANYCAST" else "topic"

    def run(self) -> tuple[list[dict[str, Any]], list[ImportNote]]:
        """Return the `spec` of each address, and the result for each setting."""
        specs: list[dict[str, Any]] = []
        for element in self._declared:
            specs += self._address(element)
        for setting in self._settings:
            specs += self._pattern(setting)
            self._note_fields(setting)
        kinds = {spec["address"]: spec["type"] for spec in specs}
        for spec in specs:
            for field in ("deadletter", "expiry"):
                if kinds.get(spec.get(field)) != "deadletter" or spec["type"] == "deadletter":
                    spec.pop(field, None)
            redelivery = spec.get("messageRedelivery", {})
            if "deadletter" not in spec:
                redelivery.pop("maximumDeliveryAttempts", None)
            if not redelivery:
                spec.pop("messageRedelivery", None)
        return specs, self._notes

    # --- addresses --------------------------------------------------------------------------------------------------

    def _address(self, element: XmlElement) -> list[dict[str, Any]]:
        name = element.attributes.get("name", "")
        if not name or name.startswith(OWN_ADDRESSES):
            self._notes.append(element.note(NOT_NEEDED, "it manages the broker itself"))
            return []
        if fault := filter_fault(name) or ("it has a wildcard of MQTT" if {"+", "#"} & set(name) else ""):
            self._notes.append(element.note(LEFT_OUT, fault))
            return []
        anycast, multicast = element.first("anycast"), element.first("multicast")
        if anycast is not None and multicast is not None:
            self._notes.append(multicast.note(LEFT_OUT, f"{name} is a queue: an address has one type"))
        merged = _merged(self._for_name(name))
        if anycast is not None:
            used = {each.text for each in self._settings_of("dead-letter-address", "expiry-address")}
            kind = "deadletter" if name in used else "queue"
            self._queues(anycast.of("queue"), name)
        else:
            kind = "topic"
        self._notes.append(element.note(IMPORTED, f"type {kind}"))
        made = [{"address": name, "type": kind, **policy_of(merged)}]
        if anycast is None and multicast is not None:
            made += [spec for queue in multicast.of("queue") for spec in self._subscription(queue, name)]
        return made

    def _queues(self, queues: Sequence[XmlElement], address: str) -> None:
        for i, queue in enumerate(queues):
            name = queue.attributes.get("name", "")
            if i:
                self._notes.append(queue.note(LEFT_OUT, f"{address} is one queue: it is the first one"))
            elif name != address:
                self._notes.append(queue.note(CHANGED, f"consumers attach to {address}, not to {address}::{name}"))
            else:
                self._notes.append(queue.note(IMPORTED))
            self._inside_queue(queue)

    def _subscription(self, queue: XmlElement, topic: str) -> list[dict[str, Any]]:
        name = queue.attributes.get("name", "")
        self._inside_queue(queue)
        if not name or filter_fault(name) or {"+", "#"} & set(name):
            self._notes.append(queue.note(LEFT_OUT, "its name cannot be that of a subscription"))
            return []
        spec: dict[str, Any] = {"address": name, "type": "subscription", "topic": topic}
        most = queue.attributes.get("max-consumers", "-1")
        spec["maxConsumers"] = int(most) if most.isascii() and most.isdigit() and int(most) else MANY_CONSUMERS
        self._notes.append(queue.note(IMPORTED, f"subscription {topic}::{name}"))
        return [spec]

    def _inside_queue(self, queue: XmlElement) -> None:
        """Note what a queue has that an address does not have."""
        for inner in queue.of("filter"):
            self._notes.append(queue.note(LEFT_OUT, "a consumer names its own filter (selector)", inner.name))
        kept = {"name", "max-consumers"}
        for attribute in sorted(queue.attributes.keys() - kept):
            self._notes.append(queue.note(*_QUEUE.get(attribute, (LEFT_OUT, "unknown")), attribute))
        if any(each.text == "false" for each in queue.of("durable")):
            self._notes.append(queue.note(CHANGED, "its messages are on disk", "durable"))

    # --- settings ---------------------------------------------------------------------------------------------------

    def _settings_of(self, *names: str) -> list[XmlElement]:
        return [inner for setting in self._settings for inner in setting.of(*names)]

    def _for_name(self, name: str) -> list[XmlElement]:
        levels = self._syntax.levels(name)
        return [each for each in self._settings if self._fits(each, levels)]

    def _fits(self, setting: XmlElement, levels: str) -> bool:
        match = self._syntax.levels(setting.attributes.get("match", ""))
        return not filter_fault(match) and covers(match, levels)

    def _pattern(self, setting: XmlElement) -> list[dict[str, Any]]:
        """Return an address for a match that no declared address has: names that begin so get the type and policy."""
        match = setting.attributes.get("match", "")
        levels = self._syntax.levels(match)
        if levels == "#" or match in self._names or match.startswith(OWN_ADDRESSES):
            self._notes.append(setting.note(IMPORTED if levels == "#" or match in self._names else NOT_NEEDED))
            return []
        if fault := filter_fault(levels) or ("it is every name with dots" if levels == ANY_LEVEL else ""):
            self._notes.append(setting.note(LEFT_OUT, f"as levels it is {levels}: {fault}"))
            return []
        general = [each for each in self._settings if self._fits(each, levels) and each is not setting]
        merged = _merged([*general, setting])
        routing = merged.get("default-address-routing-type")
        kind = "queue" if routing is not None and routing.text.upper() == "ANYCAST" else self.default_type
        if not self._syntax.is_pattern(match):
            self._notes.append(setting.note(IMPORTED, f"{kind} {match}"))
            return [{"address": match, "type": kind, **policy_of(merged)}]
        words = (
            f"for declared addresses, and for {levels}: a name has levels by `/` here, not by {self._syntax.delimiter}"
        )
        self._notes.append(setting.note(IMPORTED if levels == match else CHANGED, words if levels != match else ""))
        return [{"address": levels, "type": kind, **policy_of(merged)}]

    def _note_fields(self, setting: XmlElement) -> None:
        if setting.attributes.get("match", "").startswith(OWN_ADDRESSES):
            return
        for inner in setting.inner:
            outcome, words = FIELDS.get(inner.name, (LEFT_OUT, "unknown"))
            if inner.name in ("dead-letter-address", "expiry-address") and inner.text and inner.text not in self._names:
                outcome, words = LEFT_OUT, f"there is no address {inner.text}: add one of type deadletter"
            elif inner.name == "address-full-policy":
                outcome, words = FULL.get(inner.text.upper(), (LEFT_OUT, "unknown"))
            elif inner.name in {"auto-create-queues", "auto-create-addresses"} and inner.text == "true":
                words = f"an address that is not declared is a {self.default_type} here: declare the queues in use"
                outcome = CHANGED
            self._notes.append(ImportNote(inner.place, f"{setting.shown} {inner.name}", outcome, words))


# --- inside -----------------------------------------------------------------------------------------------------------

_QUEUE: Final[Mapping[str, tuple[ImportOutcome, str]]] = {
    "purge-on-no-consumers": (LEFT_OUT, "messages stay until they are consumed or expire"),
    "exclusive": (LEFT_OUT, "give the address maxConsumers 1"),
    "last-value": (LEFT_OUT, "use retained messages: each address keeps its last one"),
    "last-value-key": (LEFT_OUT, "use retained messages: each address keeps its last one"),
    "non-destructive": (LEFT_OUT, "use a topic with durable subscriptions"),
    "ring-size": (LEFT_OUT, "give the address quota.bytes with whenFull dropOldest"),
    "consumers-before-dispatch": (LEFT_OUT, "the first consumer gets messages at once"),
    "delay-before-dispatch": (LEFT_OUT, "the first consumer gets messages at once"),
    "group-rebalance": (LEFT_OUT, "message groups are not kept together"),
    "group-buckets": (LEFT_OUT, "message groups are not kept together"),
    "group-first-key": (LEFT_OUT, "message groups are not kept together"),
    "user": (NOT_NEEDED, "rights are those of users"),
    "enabled": (LEFT_OUT, "an address is always enabled"),
}
"""Results for the attributes of a queue; every other one is unknown."""


def _merged(settings: Iterable[XmlElement]) -> dict[str, XmlElement]:
    """Return the field that counts of each name: that of the last setting."""
    return {inner.name: inner for setting in settings for inner in setting.inner}
