"""Will Messages (MQTT 5 section 3.1.2.5), stored on disk until they are published or dropped.

A will is part of the session state (section 4.1). The session registry decides when a will is due; after a restart of
the gateway `Wills` does, until the client reconnects.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

from bridge.message import Run
from edge.broker.limits import WILLS_AFTER_START_S
from edge.broker.mqtt.events import Will
from edge.broker.router.due_wills import WillOrigin
from edge.broker.router.router import Router
from edge.broker.store.contract import SmallState
from edge.broker.store.ticket import Ticket

log = logging.getLogger(__name__)

_KIND: Final = "will"
"""Kind of rows with wills of clients that are connected or may reconnect, by client identifier."""
_OWED: Final = "owed-will"
"""Kind of rows with wills that were due while the store was full, by number."""

T = TypeVar("T")


class PendingWill(msgspec.Struct, frozen=True):
    """A will that was due while the store could not take it."""

    client_id: str
    user: str
    run: Run


class StoredWill(Will, frozen=True, gc=False):
    """A will of a client that is connected or may reconnect."""

    user: str = ""
    """User with the quotas for the names that the message creates; empty in wills of older versions."""


class _DisconnectedClient(WillOrigin):
    """Origin of the will of a disconnected client."""

    def __init__(self, wills: Wills, pending: PendingWill, number: int | None) -> None:
        """`number`: row of a pending will; None: it is stored as the will of its client."""
        super().__init__(pending.client_id, pending.user, pending.run)
        self._wills = wills
        self._number = number

    def delete_stored(self) -> None:
        if self._number is None:
            self._wills.drop(self.name)
        else:
            self._wills.remove_pending(self._number)

    def keep_stored(self) -> bool:
        """Store the will under a number, as its client may have another will by then."""
        if not self._wills.is_pending(self):
            return False
        self._number = self._wills.keep_pending(PendingWill(self.name, self.user, self.run), self._number)
        return True

    def end(self) -> None:
        self._wills.forget(self)


class Wills:
    """All wills by client identifier, including those from before a restart."""

    def __init__(self, router: Router, state: SmallState) -> None:
        self._router = router
        self._state = state
        self._started_at: float | None = None
        self._left = dict(_read(state, _KIND, StoredWill))
        """Wills of clients that have not reconnected since the start."""
        self._kept = set(self._left)
        self._gone: dict[str, list[_DisconnectedClient]] = {}
        """Wills that are due and not stored as messages yet, by client."""
        self._next_number = 0
        for key, pending in sorted(_read(state, _OWED, PendingWill), key=lambda item: int(item[0])):
            self._next_number = int(key) + 1
            origin = _DisconnectedClient(self, pending, int(key))
            self._gone.setdefault(pending.client_id, []).append(origin)
            router.wills.postpone(origin)

    def keep(self, client_id: str, will: Will | None, expiry_s: int, user: str = "") -> Ticket | None:
        """Store the will of a connecting client, or none. `expiry_s`: session expiry interval.

        Return the ticket of the commit, None if nothing is written.
        """
        self._left.pop(client_id, None)
        for due in self._gone.get(client_id, ())[:]:  # of its earlier connections
            self._router.wills.publish(due)
        if will is None:
            return self.drop(client_id)
        self._kept.add(client_id)
        kept = StoredWill(will.run, min(will.delay_s, expiry_s), user)
        return self._state.put(_KIND, client_id, msgspec.msgpack.encode(kept))

    def drop(self, client_id: str) -> Ticket | None:
        """Delete the will of a client after its DISCONNECT [MQTT-3.1.2-10]. Return the ticket as `keep` does."""
        if client_id not in self._kept:
            return None
        self._kept.discard(client_id)
        return self._state.delete(_KIND, client_id)

    def publish(self, client_id: str, will: Will, user: str = "") -> None:
        """Publish the will of a disconnected client. If it is stored, the same commit deletes the will."""
        run = will.run
        copy = Run(run.address, run.device or client_id, run.flags, run.properties, list(run.bodies))
        origin = _DisconnectedClient(self, PendingWill(client_id, user, copy), None)
        self._gone.setdefault(client_id, []).append(origin)
        self._router.wills.add(origin)

    def mark_connected(self, client_id: str) -> None:
        """Publish due wills of a reconnected client before its new messages, or drop them: its new state is newer."""
        for origin in self._gone.pop(client_id, ()):
            self._router.wills.publish_postponed(origin)

    def end(self, client_id: str) -> None:
        """Publish a will from before the start, as its session has ended."""
        will = self._left.pop(client_id, None)
        if will is not None:
            self.publish(client_id, will, will.user)

    def tick(self, now: float) -> None:
        """Publish wills of clients that have not reconnected in time after the start."""
        if not self._left:
            return
        if self._started_at is None:
            self._started_at = now
        waited_s = now - self._started_at
        if waited_s >= WILLS_AFTER_START_S:
            for client_id in [client_id for client_id, will in self._left.items() if waited_s >= will.delay_s]:
                self.end(client_id)

    # --- wills that are due -------------------------------------------------------------------------------------

    def keep_pending(self, pending: PendingWill, number: int | None) -> int:
        """Store a due will that could not be published, under its number or a new one."""
        if number is None:
            number, self._next_number = self._next_number, self._next_number + 1
        self._state.put(_OWED, str(number), msgspec.msgpack.encode(pending))
        return number

    def remove_pending(self, number: int) -> None:
        """Delete a pending will."""
        self._state.delete(_OWED, str(number))

    def is_pending(self, origin: _DisconnectedClient) -> bool:
        """Return True until the client reconnects."""
        if origin in self._gone.get(origin.name, ()):
            return True
        log.warning("%s: its will to %s was not stored before it reconnected: dropped", origin.name, origin.run.address)
        return False

    def forget(self, origin: _DisconnectedClient) -> None:
        """Forget a due will that is stored or dropped."""
        gone = self._gone.get(origin.name, [])
        if origin in gone:
            gone.remove(origin)
            if not gone:
                del self._gone[origin.name]


def _read(state: SmallState, kind: str, what: type[T]) -> Iterator[tuple[str, T]]:
    for key, value in state.items(kind):
        try:
            yield key, msgspec.msgpack.decode(value, type=what)
        except msgspec.MsgspecError as error:
            log.warning("%s: its will cannot be read: %s", key, error)
