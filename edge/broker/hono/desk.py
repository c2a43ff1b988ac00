"""Who gets the commands of which device: the queues of commands, and the devices and gateways that attend to them.

A subscription for one device goes before one for all a gateway acts for, and of several for one device the last one
made has the commands, as in Hono. Commands nobody attends to wait in their queue for as long as they live.
"""

from __future__ import annotations

from collections.abc import Iterable

from edge.broker.delivery.pattern import Joinable
from edge.broker.hono.addresses import Addresses
from edge.broker.hono.tenant import Principal
from edge.broker.model.interfaces import Consumer, SubscribeOptions
from edge.broker.router.router import Router

_OPTIONS = SubscribeOptions()


class Attendance:
    """One consumer's claim to the commands of one device, or of all a gateway acts for; until `leave`."""

    def __init__(self, desk: Desk, consumer: Consumer, device: str | None, principal: Principal | None) -> None:
        self.consumer = consumer
        self.device = device
        self.principal = principal
        self.joined: dict[str, Joinable] = {}
        """What it consumes from, by address or filter."""
        self._desk = desk

    def covers(self, device: str) -> bool:
        """It is for all of a gateway, and this device is one of those."""
        return self.device is None and self.principal is not None and self.principal.may_act_for(device)

    def pump(self) -> None:
        """Deliver what is waiting."""
        for joined in list(self.joined.values()):
            joined.pump()

    @property
    def idle_now(self) -> bool:
        """Nothing more comes before somebody sends or gives something back."""
        return all(joined.idle_now for joined in self.joined.values())

    def leave(self) -> None:
        """What was not settled goes to whoever is next. Idempotent."""
        self._desk.leave(self)


class Desk:
    """All attendances of one tenant."""

    def __init__(self, router: Router, addresses: Addresses) -> None:
        self._router = router
        self._addresses = addresses
        self._specific: dict[str, list[Attendance]] = {}
        """By device, the one that gets its commands last."""
        self._general: dict[Attendance, None] = {}

    def attend(self, consumer: Consumer, device: str) -> Attendance:
        """Give `consumer` the commands of one device. Raises AddressError."""
        attendance = Attendance(self, consumer, device, None)
        others = self._specific.get(device, [])
        if others:
            self._part(others[-1])
        try:
            self._join(attendance, self._addresses.queue(device))
        except BaseException:
            if others:
                self._join(others[-1], self._addresses.queue(device))
            raise
        self._specific.setdefault(device, []).append(attendance)
        queue = self._router.queues.get(self._addresses.queue(device))
        for general in self._general:
            if queue is not None and general.covers(device):
                queue.leave(general.consumer, keep=False)
        return attendance

    def attend_all(self, consumer: Consumer, principal: Principal) -> Attendance:
        """Give a gateway the commands of all devices it acts for that nobody attends to for themselves. Raises
        AddressError."""
        attendance = Attendance(self, consumer, None, principal)
        if principal.everybody:
            self._join(attendance, self._addresses.commands)
        else:
            for device in sorted((principal.device, *principal.acts_for)):
                self._join(attendance, self._addresses.queue(device))
        for device in self._specific:
            queue = self._router.queues.get(self._addresses.queue(device))
            if queue is not None and attendance.covers(device):
                queue.leave(consumer, keep=False)
        self._general[attendance] = None
        return attendance

    def leave(self, attendance: Attendance) -> None:
        """See `Attendance.leave`."""
        device = attendance.device
        if device is None:
            self._general.pop(attendance, None)
            self._part(attendance)
            return
        others = self._specific.get(device, [])
        if attendance not in others:
            return
        was_last = others[-1] is attendance
        others.remove(attendance)
        self._part(attendance)
        if not others:
            del self._specific[device]
            self._return(device, [general for general in self._general if general.covers(device)])
        elif was_last:
            self._join(others[-1], self._addresses.queue(device))
            others[-1].pump()

    def _return(self, device: str, generals: Iterable[Attendance]) -> None:
        """Nobody attends to the device for itself any more: its gateways do again."""
        queue = self._router.queues.get(self._addresses.queue(device))
        if queue is None:
            return
        for general in generals:
            queue.join(general.consumer)
        queue.pump()

    def _join(self, attendance: Attendance, address: str) -> None:
        attendance.joined[address] = self._router.subscribe(attendance.consumer, address, _OPTIONS)

    def _part(self, attendance: Attendance) -> None:
        joined, attendance.joined = attendance.joined, {}
        for subscription in joined.values():
            self._router.unsubscribe(attendance.consumer, subscription, forget=False)
