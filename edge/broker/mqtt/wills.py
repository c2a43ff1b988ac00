"""Will Messages (MQTT 5 section 3.1.2.5): published for clients that are gone, and on disk until then, as they are part
of what a session is (section 4.1). When one is due, sessions decide; after a restart of the gateway, `Wills` does.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

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


class Wills:
    """The wills there are, by client id, and those of clients that were there when the gateway went down."""

    def __init__(self, router: Router, store: SmallState) -> None:
        self._router = router
        self._store = store
        self._started_at: float | None = None
        self._left: dict[str, Will] = {}
        """Of clients that have not come back since the start."""
        for client_id, value in store.items(_KIND):
            try:
                self._left[client_id] = msgspec.msgpack.decode(value, type=Will)
            except msgspec.MsgspecError as error:
                log.warning("%s: its will cannot be read: %s", client_id, error)
        self._kept = set(self._left)
        self._due: dict[str, WillOrigin] = {}
        """Of clients that are gone, and not published yet."""

    def keep(self, client_id: str, will: Will | None, expiry_s: int) -> Ticket | None:
        """The client connects, with this will or none; its session outlives the connection by `expiry_s`. The ticket is
        of what has to be on disk for that; None: nothing."""
        self._left.pop(client_id, None)
        due = self._due.get(client_id)
        if due is not None:  # of its connection before, which is gone
            self._router.wills.publish(due)
        if will is None:
            return self.drop(client_id)
        self._kept.add(client_id)
        kept = msgspec.structs.replace(will, delay_s=min(will.delay_s, expiry_s))
        return self._store.put(_KIND, client_id, msgspec.msgpack.encode(kept))

    def drop(self, client_id: str) -> Ticket | None:
        """The client has said good-bye: its will is not wanted any more [MQTT-3.1.2-10]. The ticket as of `keep`."""
        if client_id not in self._kept:
            return None
        self._kept.discard(client_id)
        return self._store.delete(_KIND, client_id)

    def publish(self, client_id: str, will: Will, user: str = "") -> None:
        """The client is gone: publish its will, which is kept no longer, in one commit where it is stored."""
        run = will.run
        copy = Run(run.address, run.device or client_id, run.flags, run.properties, list(run.bodies))
        origin = self._due[client_id] = WillOrigin(client_id, user)
        self._router.wills.add(origin, copy, partial(self._published, client_id))

    def _published(self, client_id: str) -> None:
        self._due.pop(client_id, None)
        self.drop(client_id)

    def end(self, client_id: str) -> None:
        """The session has ended: a will from before the start waits no longer."""
        will = self._left.pop(client_id, None)
        if will is not None:
            self.publish(client_id, will)

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
