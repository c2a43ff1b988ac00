"""Termini: source and target of a link."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from bridge.hidden import hides


class TerminusKind(enum.IntEnum):
    """Kind of a terminus; NONE is a null terminus (a refused link, section 2.6.3)."""

    NONE = 0
    SOURCE = 1
    TARGET = 2
    COORDINATOR = 3


@hides("filters", "properties")
class Terminus(msgspec.Struct, frozen=True, kw_only=True):
    """A source or a target (sections 3.5.3, 3.5.4). With kind TARGET and no address: the anonymous relay."""

    kind: TerminusKind = TerminusKind.NONE
    address: str | None = None
    dynamic: bool = False
    durability: int = 0
    """0 none, 1 configuration, 2 unsettled-state."""
    expiry: str = "session-end"
    """`link-detach`, `session-end`, `connection-close` or `never`."""
    timeout_s: int = 0
    distribution_mode: str | None = None
    """`move` or `copy`; sources only."""
    outcomes: tuple[str, ...] = ()
    """Symbolic descriptors of the supported outcomes; sources only, empty where not specified."""
    capabilities: tuple[str, ...] = ()
    filters: Mapping[Any, Any] = {}
    """Filter set of a source: name -> `DescribedValue` filter."""
    properties: Mapping[Any, Any] = {}
    """The field dynamic-node-properties."""


def source(address: str | None, **fields: Any) -> Terminus:
    """Return a source for an attach."""
    return Terminus(kind=TerminusKind.SOURCE, address=address, **fields)


def target(address: str | None, **fields: Any) -> Terminus:
    """Return a target for an attach; address None is the anonymous relay."""
    return Terminus(kind=TerminusKind.TARGET, address=address, **fields)
