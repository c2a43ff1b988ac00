"""Documents of the configuration API. Times are UTC seconds since 1970."""

from __future__ import annotations

from typing import Any

import msgspec

from bridge.hidden import hides


class ConfigurationFault(msgspec.Struct, kw_only=True):
    """One mistake in a configuration."""

    line: int
    """Line of the text, from 1; 0: no line."""
    path: str
    """Path of the value, such as ``spec.quota.bytes``."""
    message: str
    """Sentence about it."""


class ConfigurationChange(msgspec.Struct, kw_only=True):
    """Change of one resource."""

    kind: str
    name: str
    change: str
    """``created``, ``changed`` or ``deleted``."""
    diff: str
    """Unified diff of its YAML, without secrets."""


class ConfigurationCheck(msgspec.Struct, kw_only=True):
    """Result of a check: the effects of a change, which is not made."""

    ok: bool
    """There is no mistake."""
    errors: list[ConfigurationFault]
    """Mistakes, in order of their lines."""
    changes: list[ConfigurationChange]
    """Resources that would change; empty with mistakes."""
    bridge: list[str]
    """Changes of connectors and forwarders, as sentences."""
    notes: list[str]
    """Warnings, for example about a change that takes effect after a restart."""


class ManagedResource(msgspec.Struct, kw_only=True):
    """Resource that the hub decides about, so that it cannot be changed here."""

    kind: str
    name: str
    text: str
    """Its YAML, without secrets."""


class TrialDocument(msgspec.Struct, kw_only=True):
    """Change on trial."""

    version: int
    """Version on trial."""
    by: str
    """User who tries it."""
    seconds_left: float
    """Time to keep it; then the version before returns."""


class ConfigurationDocument(msgspec.Struct, kw_only=True):
    """Configuration of a gateway."""

    version: int
    """Number of the own configuration; it counts changes."""
    text: str
    """Own resources as YAML, with secrets hidden as ``********``."""
    fixed: str
    """Why nothing can be changed here; empty: it can."""
    managed: list[ManagedResource]
    """Resources of the hub."""
    hub_version: int
    """Version of the hub's configuration in force; 0: none."""
    trial: TrialDocument | None
    """Change on trial, or None."""


class AppliedConfigurationDocument(msgspec.Struct, kw_only=True):
    """Result of a change."""

    version: int
    """Version in force now."""
    changes: list[ConfigurationChange]
    """Resources that changed."""
    trial: TrialDocument | None
    """The change is on trial until it is kept."""


class HistoryEntry(msgspec.Struct, kw_only=True):
    """One version of the own configuration."""

    version: int
    at: float
    """Time of the change."""
    by: str
    """User who made it; empty if it is not known."""
    resources: int
    """Number of its resources."""


class ConfigurationHistoryDocument(msgspec.Struct, kw_only=True):
    """Last versions of the own configuration."""

    versions: list[HistoryEntry]
    """The latest first."""


class EarlierConfiguration(msgspec.Struct, kw_only=True):
    """One version, and what a return to it would change."""

    version: int
    at: float
    """Time of the change."""
    by: str
    """User who made it; empty if it is not known."""
    text: str
    """Its resources as YAML, without secrets."""
    check: ConfigurationCheck
    """Effects of a return to it."""


@hides("text")
class ConfigurationText(msgspec.Struct, kw_only=True):
    """Body of a check: own resources as YAML."""

    text: str


@hides("text")
class ConfigurationRequest(msgspec.Struct, kw_only=True):
    """Body of a change: a text, or an earlier version to return to."""

    version: int
    """Version that the text was made of: with another one in force nothing is changed."""
    text: str | None = None
    """Own resources as YAML; all others are deleted."""
    restore: int | None = None
    """Earlier version, with its secrets."""
    try_s: float | None = None
    """Seconds to keep it; otherwise the version before returns. None: it is kept at once."""


class AddressRequest(msgspec.Struct, kw_only=True):
    """Body of a new address."""

    address: str
    """Name or pattern."""
    spec: dict[str, Any]
    """Fields of an Address resource: ``type``, ``quota`` and so on."""


class AddressResult(msgspec.Struct, kw_only=True):
    """Result of a change of an address."""

    address: str
    spec: dict[str, Any]
    """Fields that the address has now."""
