"""Decision whether a new system is kept: it has to be as healthy as the old one, for a while, within a time limit."""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Final, NamedTuple

from edge.appliance.update.limits import HEALTHY_S, TRIAL_S

NOT_CONNECTED: Final = "it is not connected to its hub, and was before the update"


class UpdateVerdict(enum.Enum):
    """Decision about the running system."""

    WAIT = "wait"
    KEEP = "keep"
    GO_BACK = "go back"


class GatewayCondition(NamedTuple):
    """Condition of a gateway that answers."""

    errors: frozenset[str]
    """Names of the problems that keep devices from being served (`edge.health.problems`)."""
    connected: bool
    """True when it is connected to its hub."""


class UpdateGate:
    """Trial of one update. A decision is final."""

    def __init__(self, began: float, *, errors: Collection[str], connected: bool) -> None:
        """`began`: start of the new system, in monotonic seconds. `errors`, `connected`: condition of the gateway
        before the update; problems that it had then do not count."""
        self._ends = began + TRIAL_S
        self._known = frozenset(errors)
        self._was_connected = connected
        self._healthy_since: float | None = None
        self._verdict = UpdateVerdict.WAIT
        self.lacking = "the gateway has not answered yet"
        """Reason why the system is not healthy; empty when it is."""

    @property
    def lacks_only_the_hub(self) -> bool:
        """True when nothing but the connection to the hub is missing. The hub may be away under any system."""
        return self.lacking == NOT_CONNECTED

    def update(self, now: float, condition: GatewayCondition | None) -> UpdateVerdict:
        """Return the decision, given the current condition; None: the gateway does not answer."""
        if self._verdict is not UpdateVerdict.WAIT:
            return self._verdict
        self.lacking = self._lacking(condition)
        if self.lacking:
            self._healthy_since = None
        elif self._healthy_since is None:
            self._healthy_since = now
        elif now - self._healthy_since >= HEALTHY_S:
            self._verdict = UpdateVerdict.KEEP
        if self._verdict is UpdateVerdict.WAIT and now >= self._ends:
            self.lacking = self.lacking or "it was not healthy for long enough"
            self._verdict = UpdateVerdict.GO_BACK
        return self._verdict

    def _lacking(self, condition: GatewayCondition | None) -> str:
        if condition is None:
            return "the gateway does not answer"
        if new := sorted(condition.errors - self._known):
            return f"new problems: {', '.join(new)}"
        if self._was_connected and not condition.connected:
            return NOT_CONNECTED
        return ""
