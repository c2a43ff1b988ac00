"""Whether a new system is kept: it has to be as well as the old one was, for a while, in good time."""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Final, NamedTuple

from edge.appliance.update.limits import HEALTHY_S, TRIAL_S

NOT_CONNECTED: Final = "it is not connected to its hub, and was before the update"


class UpdateVerdict(enum.Enum):
    """What to do with the system that runs."""

    WAIT = "wait"
    KEEP = "keep"
    GO_BACK = "go back"


class GatewayCondition(NamedTuple):
    """How a gateway is; None in its place: it does not answer."""

    errors: frozenset[str]
    """Names of the problems that keep devices from being served (`edge.health.problems`)."""
    connected: bool
    """To its hub."""


class UpdateGate:
    """Of one update. Once it has decided it says the same for ever."""

    def __init__(self, began: float, *, errors: Collection[str], connected: bool) -> None:
        """`began`: when the new system was started, seconds of a clock that does not jump. `errors`, `connected`: how
        the gateway was before the update: what was wrong then is not held against it."""
        self._ends = began + TRIAL_S
        self._known = frozenset(errors)
        self._was_connected = connected
        self._well_since: float | None = None
        self._verdict = UpdateVerdict.WAIT
        self.lacking = "the gateway has not answered yet"
        """What keeps it from being kept; empty when nothing does."""

    @property
    def lacks_only_the_hub(self) -> bool:
        """True when nothing but the connection to the hub is missing. The hub may be away, whatever system runs."""
        return self.lacking == NOT_CONNECTED

    def see(self, now: float, seen: GatewayCondition | None) -> UpdateVerdict:
        """Take in how it is now."""
        if self._verdict is not UpdateVerdict.WAIT:
            return self._verdict
        self.lacking = self._lacking(seen)
        if self.lacking:
            self._well_since = None
        elif self._well_since is None:
            self._well_since = now
        elif now - self._well_since >= HEALTHY_S:
            self._verdict = UpdateVerdict.KEEP
        if self._verdict is UpdateVerdict.WAIT and now >= self._ends:
            self.lacking = self.lacking or "it was not well for long enough"
            self._verdict = UpdateVerdict.GO_BACK
        return self._verdict

    def _lacking(self, seen: GatewayCondition | None) -> str:
        if seen is None:
            return "the gateway does not answer"
        if new := sorted(seen.errors - self._known):
            return f"new problems: {', '.join(new)}"
        if self._was_connected and not seen.connected:
            return NOT_CONNECTED
        return ""
