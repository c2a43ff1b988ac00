"""Will Messages (MQTT 5 section 3.1.2.5): published for clients that are gone, and on disk until then, as they are part
of what a session is (section 4.1). When one is due, sessions decide; after a restart of the gateway, `Wills` does.
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
"""By client identifier, of clients that are connected or not long gone."""
_OWED: Final = "owed-will"
"""By number, those that were due when the store could not take them."""

T = TypeVar("T")


class PendingWill(msgspec.Struct, frozen=True):
    """A will as it is kept when its client has gone and the store could not take it."""

    client_id: str
    user: str
    run: Run


class StoredWill(Will, frozen=True, gc=False):
    """A will as it is kept while its client is there, or may come back."""

    user: str = ""
    """Whose quota pays for the names its message makes; empty also of what an older version kept."""


class _DisconnectedClient(WillOrigin):
    """The will of a client that is gone."""

    def __init__(self, wills: Wills, owed: PendingWill, number: int | None) -> None:
        """`number`: it is kept under this one among those owed; None: as the will of its client."""
        super().__init__(owed.client_id, owed.user, owed.run)
        self._wills = wills
        self._number = number

    def leaves(self) -> None:
        if self._number is None:
            self._wills.drop(self.name)
        else:
            self._wills.settle(self._number)

    def stays(self) -> bool:
        """Under a number of its own: its client may have another will by then."""
        if not self._wills.is_owed(self):
            return False
        self._number = self._wills.owe(PendingWill(self.name, self.user, self.run), self._number)
        return True

    def is_over(self) -> None:
        self._wills.forget(self)


class Wills:
    """The wills there are, by client id, and those of clients that were there when the gateway went down."""

    def __init__(self, router: Router, state: SmallState) -> None:
        self._router = router
        self._state = state
        self._started_at: float | None = None
        self._left = dict(_read(state, _KIND, StoredWill))
        """Of clients that have not come back since the start."""
        self._kept = set(self._left)
        self._gone: dict[str, list[_DisconnectedClient]] = {}
        """By client, those that are due, and not stored yet."""
        self._next_number = 0
        for key, owed in sorted(_read(state, _OWED, PendingWill), key=lambda item: int(item[0])):
            self._next_number = int(key) + 1
            origin = _DisconnectedClient(self, owed, int(key))
            self._gone.setdefault(owed.client_id, []).append(origin)
            router.wills.put_off(origin)

    def keep(self, client_id: str, will: Will | None, expiry_s: int, user: str = "") -> Ticket | None:
        """The client of this user connects, with this will or none; its session outlives the connection by `expiry_s`.
        The ticket is of what has to be on disk for that; None: nothing."""
        self._left.pop(client_id, None)
        for due in self._gone.get(client_id, ())[:]:  # of its connections before, which are gone
            self._router.wills.publish(due)
        if will is None:
            return self.drop(client_id)
        self._kept.add(client_id)
        kept = StoredWill(will.run, min(will.delay_s, expiry_s), user)
        return self._state.put(_KIND, client_id, msgspec.msgpack.encode(kept))

    def drop(self, client_id: str) -> Ticket | None:
        """The client has said good-bye: its will is not wanted any more [MQTT-3.1.2-10]. The ticket as of `keep`."""
        if client_id not in self._kept:
            return None
        self._kept.discard(client_id)
        return self._state.delete(_KIND, client_id)

    def publish(self, client_id: str, will: Will, user: str = "") -> None:
        """The client is gone: publish its will, which is kept no longer, in one commit where it is stored."""
        run = will.run
        copy = Run(run.address, run.device or client_id, run.flags, run.properties, list(run.bodies))
        origin = _DisconnectedClient(self, PendingWill(client_id, user, copy), None)
        self._gone.setdefault(client_id, []).append(origin)
        self._router.wills.add(origin)

    def back(self, client_id: str) -> None:
        """The client is there again, and sends next. What it is still owed goes before that, or not at all: what it
        says of its state is newer."""
        for origin in self._gone.pop(client_id, ()):
            self._router.wills.go_ahead(origin)

    def end(self, client_id: str) -> None:
        """The session has ended: a will from before the start waits no longer."""
        will = self._left.pop(client_id, None)
        if will is not None:
            self.publish(client_id, will, will.user)

    def tick(self, now: float) -> None:
        """Publish those of clients that had the time to come back after the start, and did not."""
        if not self._left:
            return
        if self._started_at is None:
            self._started_at = now
        waited_s = now - self._started_at
        if waited_s >= WILLS_AFTER_START_S:
            for client_id in [client_id for client_id, will in self._left.items() if waited_s >= will.delay_s]:
                self.end(client_id)

    # --- of those that are due --------------------------------------------------------------------------------

    def owe(self, owed: PendingWill, number: int | None) -> int:
        """Keep one that could not be stored, under the number it has or a new one."""
        if number is None:
            number, self._next_number = self._next_number, self._next_number + 1
        self._state.put(_OWED, str(number), msgspec.msgpack.encode(owed))
        return number

    def settle(self, number: int) -> None:
        """It is kept no longer."""
        self._state.delete(_OWED, str(number))

    def is_owed(self, origin: _DisconnectedClient) -> bool:
        """Its client is not back."""
        if origin in self._gone.get(origin.name, ()):
            return True
        log.warning("%s: its will to %s could not be stored before it came back", origin.name, origin.run.address)
        return False

    def forget(self, origin: _DisconnectedClient) -> None:
        """It is stored, or will never be."""
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
