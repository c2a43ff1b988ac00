"""Rules of imported users: `authorization` of a MessagingUser."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from edge.broker.security.limits import RULES_PER_USER_MAX


def rules_of(addresses: Iterable[str], operations: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield rules that allow operations on addresses, each with as many addresses as a rule may have."""
    wanted, allowed = list(dict.fromkeys(addresses)), list(operations)
    for first in range(0, len(wanted), RULES_PER_USER_MAX):
        yield {"addresses": wanted[first : first + RULES_PER_USER_MAX], "operations": list(allowed)}
