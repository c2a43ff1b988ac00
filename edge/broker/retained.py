"""Retained messages: the last one of each address, for those who subscribe later (MQTT 5 section 3.3.1.3)."""

from __future__ import annotations

import msgspec

from bridge.message import RETAIN, Run
from edge.broker.limits import RETAINED_MAX
from edge.broker.store.contract import Store
from edge.broker.topics import is_filter, matches

KIND = "retained"
"""Kind of the store's small state they are kept under, by address."""


class RetainedMessages:
    """Held in memory and kept in the store; what `put` changes is on disk with the open group."""

    def __init__(self, store: Store) -> None:
        self.refused = 0
        """Messages not retained because there are `limits.RETAINED_MAX` addresses with one."""
        self._store = store
        self._runs = {address: msgspec.msgpack.decode(value, type=Run) for address, value in store.items(KIND)}

    def __len__(self) -> int:
        return len(self._runs)

    def put(self, run: Run) -> bool:
        """Replace the message of the run's address by its last one; an empty body clears it.

        Returns True when the store has to commit for it.
        """
        address, body = run.address, run.bodies[-1]
        if not body:
            if self._runs.pop(address, None) is None:
                return False
            self._store.delete(KIND, address)
            return True
        if address not in self._runs and len(self._runs) >= RETAINED_MAX:
            self.refused += 1
            return False
        kept = Run(address, run.device, run.flags | RETAIN, run.properties, [body], run.received_at)
        self._runs[address] = kept
        self._store.put(KIND, address, msgspec.msgpack.encode(kept))
        return True

    def matching(self, pattern: str) -> list[Run]:
        """Those of every address the filter matches."""
        if not is_filter(pattern):
            kept = self._runs.get(pattern)
            return [] if kept is None else [kept]
        return [run for address, run in self._runs.items() if matches(pattern, address)]
