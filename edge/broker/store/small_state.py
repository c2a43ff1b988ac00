"""Small durable state: committed values merged with uncommitted ones."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

from edge.broker.store.errors import StoreError
from edge.broker.store.gatherer import Gatherer
from edge.broker.store.limits import VALUE_BYTES_MAX
from edge.broker.store.logs import check_text
from edge.broker.store.medium import Medium
from edge.broker.store.ticket import Ticket


class StoreState:
    """Implements `contract.SmallState`."""

    def __init__(self, gatherer: Gatherer, medium: Medium) -> None:
        self._gatherer = gatherer
        self._medium = medium

    def put(self, kind: str, key: str, value: bytes) -> Ticket:
        check_text("kind", kind)
        check_text("key", key)
        if len(value) > VALUE_BYTES_MAX:
            raise StoreError(f"value of {kind} {key!r} has {len(value)} bytes, {VALUE_BYTES_MAX} are allowed")
        return self._set(kind, key, value)

    def delete(self, kind: str, key: str) -> Ticket:
        return self._set(kind, key, None)

    def restore(self, kind: str, key: str, value: bytes) -> None:
        state, sealed = self._gatherer.open.state, self._gatherer.sealed
        is_sealed = sealed is not None and (kind, key) in sealed.state
        if not is_sealed and state.get((kind, key), value) is None:
            del state[kind, key]
        else:
            self._set(kind, key, value)

    def get(self, kind: str, key: str) -> bytes | None:
        for group in reversed(self._gatherer.groups):
            if (kind, key) in group.state:
                return group.state[kind, key]
        return self._medium.value(kind, key)

    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        put, committed = self._uncommitted(kind), self._medium.items(kind)
        if not put:
            return committed
        kept = (item for item in committed if item[0] not in put)
        return merge(kept, sorted((key, value) for key, value in put.items() if value is not None))

    def _set(self, kind: str, key: str, value: bytes | None) -> Ticket:
        group = self._gatherer.open
        group.state[kind, key] = value
        group.urgent = True
        return group.ticket

    def _uncommitted(self, kind: str) -> dict[str, bytes | None]:
        """Return the uncommitted values (None: deleted) of a kind, by key."""
        groups = self._gatherer.groups
        return {key: value for group in groups for (of, key), value in group.state.items() if of == kind}
