"""Latest events in memory: streams that are up to date read them from here. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from cloud.hub.events.limits import EVENTS_CACHED_MAX
from cloud.hub.registry.event_reader import EventFilter, EventPage, NumberedEvent


class EventTail:
    """Events after `begin`, up to `reached`, without a gap."""

    def __init__(self, number: int) -> None:
        """`number`: that of the latest event in the registry."""
        self.begin = number
        self.reached = number
        self._events: deque[NumberedEvent] = deque()

    def extend(self, found: Sequence[NumberedEvent], reached: int) -> None:
        """Add the events that follow, up to a number."""
        self._events.extend(found)
        self.reached = max(self.reached, reached)
        while len(self._events) > EVENTS_CACHED_MAX:
            self.begin = self._events.popleft().number

    def page(self, after: int, wanted: EventFilter, limit: int) -> EventPage | None:
        """Return events after a number; None if the registry has to be read for them."""
        if not self.begin <= after <= self.reached:
            return None
        found: list[NumberedEvent] = []
        later = list(takewhile(lambda each: each.number > after, reversed(self._events)))
        for each in reversed(later):
            if wanted.matches(each.event):
                found.append(each)
                if len(found) == limit:
                    return EventPage(found, each.number, each.number < self.reached)
        return EventPage(found, self.reached, more=False)
