"""One connection of a gateway to a hub: an engine with the uplink, the reports and the inboxes bound to it.

It obeys `Connection` itself, so that what the uplink gathered during a turn of the loop becomes batches exactly when
the driver asks for bytes. A new one is made for each attempt; the uplink, the reports and the inboxes live on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from bridge.batch import CAPABILITY
from bridge.clock_offset import CAPABILITY as CLOCK_OFFSETS
from bridge.engine import (
    Attached,
    Closed,
    Condition,
    Detached,
    Dispositions,
    Engine,
    Event,
    Link,
    Opened,
    Transfers,
    words,
)
from bridge.forwarders.inbox import Inbox
from bridge.forwarders.receivers import Receivers
from bridge.hub_addresses import DESIRED, LEDGER, MANIFESTS, STATUS, TELEMETRY
from bridge.reports import Reports
from bridge.uplink import Shell, Uplink


class LinkUp(msgspec.Struct, frozen=True, gc=False):
    """The peer takes telemetry."""

    peer: str
    """Its container-id."""
    batching: bool
    """It takes batches; otherwise it gets one AMQP message a delivery."""


class LinkDown(msgspec.Struct, frozen=True, gc=False):
    """The connection is over, or never came about; always the last event, exactly once."""

    reason: str
    wait_s: float = 0.0
    """The peer asks not to be called again before."""


class GatewayLink:
    """See the module. Its events are `LinkUp` and `LinkDown`, for whoever dials."""

    def __init__(
        self,
        engine: Engine,
        uplink: Uplink,
        reports: Reports | None = None,
        *,
        target: str = TELEMETRY,
        inboxes: Sequence[Inbox] = (),
    ) -> None:
        """`engine` is a client that has not been opened. `target`: the peer's address for telemetry. `inboxes` get what
        comes down from a hub, each from an address of `bridge.hub_addresses`.

        A peer that refuses the links for status, ledger and manifests simply gets none; one that refuses those of the
        inboxes has nothing for them.
        """
        self._engine = engine
        self._uplink = uplink
        self._reports = reports
        self._receivers = Receivers(inboxes, again=False)
        self._target = target
        self._peer = "-"
        self._telemetry: Link | None = None
        self._status: Link | None = None
        self._ledger: Link | None = None
        self._manifests: Link | None = None
        self._configuration: Link | None = None
        self._waiting: Link | None = None
        """The telemetry link, while the hub compares lineages."""
        self._reason: str | None = None
        """Why the connection is to end; it ends when the receivers have left."""
        self._condition: Condition | None = None
        self._down = False
        engine.open()

    # --- Connection -------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._engine.closed

    @property
    def deadline(self) -> float | None:
        every = (self._engine.deadline, self._uplink.due_at, self._receivers.deadline)
        return min((each for each in every if each is not None), default=None)

    @property
    def held_bytes(self) -> int:
        return self._engine.held_bytes

    @property
    def more(self) -> bool:
        return self._engine.more

    def shed(self) -> Sequence[LinkUp | LinkDown]:
        return self._take(self._engine.shed(), 0.0)

    def receive_data(self, data: bytes, now: float) -> Sequence[LinkUp | LinkDown]:
        self._uplink.carried(len(data))
        return self._take(self._engine.receive_data(data, now), now)

    def receive_eof(self, now: float) -> Sequence[LinkUp | LinkDown]:
        return self._take(self._engine.receive_eof(now), now)

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[LinkUp | LinkDown]:
        told = self._take(self._engine.handle_timeout(now, listening=listening), now)
        if self._reason is not None and not self._down:
            self._receivers.handle_timeout(now)
        return told

    @property
    def spoken(self) -> str:
        return self._engine.spoken

    @property
    def has_output(self) -> bool:
        return True  # the uplink may have more with each flush

    def data_to_send(self) -> bytes:
        if not self._down and self._reason is None:
            if self._reports is not None:
                self._reports.flush()
            self._uplink.flush()
        data = self._engine.data_to_send()
        self._uplink.carried(len(data))
        return data

    # --- commands ---------------------------------------------------------------------------------------------

    def close(self, reason: str, condition: Condition | None = None) -> None:
        """End the connection in good order: what was taken of the peer is answered first. What is unsettled stays with
        the uplink."""
        if self._reason is None and not self._down:
            self._reason, self._condition = reason, condition
            self._detach()
            self._receivers.leave(self._end)

    # --- inside -----------------------------------------------------------------------------------------------

    def _take(self, events: Iterable[Event], now: float) -> list[LinkUp | LinkDown]:
        told: list[LinkUp | LinkDown] = []
        for event in events:
            if isinstance(event, Closed):
                self._on_closed(event, told)
            elif self._reason is not None:  # whatever else arrives comes again over the next connection
                if isinstance(event, Transfers):
                    self._receivers.received(event)
            elif isinstance(event, Dispositions):
                self._on_dispositions(event, now, told)
            elif isinstance(event, Opened):
                self._on_opened(event)
            elif isinstance(event, Attached):
                self._on_attached(event.link, told)
            elif isinstance(event, Detached):
                self._on_detached(event, now)
            elif isinstance(event, Transfers) and not self._receivers.received(event):
                self.close("the peer sent messages on a link of ours", Condition("amqp:not-allowed"))
        return told

    def _on_opened(self, event: Opened) -> None:
        self._peer = event.container_id
        attach = self._engine.attach_sender
        if self._reports is not None:
            self._reports.hold()
            self._ledger = attach(LEDGER, LEDGER)
            self._status = attach(STATUS, STATUS)
        self._telemetry = attach(TELEMETRY, self._target, desired_capabilities=(CAPABILITY,))

    def _on_attached(self, link: Link, told: list[LinkUp | LinkDown]) -> None:
        if link is self._telemetry:
            self._waiting = link
            if self._reports is not None and CAPABILITY in link.offered_capabilities:
                self._reports.announce()
                wanted = (CLOCK_OFFSETS,)
                self._manifests = self._engine.attach_sender(MANIFESTS, MANIFESTS, desired_capabilities=wanted)
                if self._reports.tells_configuration:
                    self._configuration = self._engine.attach_sender(DESIRED, DESIRED)
            elif self._reports is not None:
                self._reports.release()
            if CAPABILITY in link.offered_capabilities:
                self._receivers.begin(self._engine, self._wake, self._cut)
            self._begin(told)
        elif self._reports is not None and link is self._status:
            self._reports.attached(self._engine, status=link)
        elif self._reports is not None and link is self._ledger:
            self._reports.attached(self._engine, ledger=link)
        elif self._reports is not None and link is self._manifests:
            self._reports.attached(self._engine, manifests=link)
        elif self._reports is not None and link is self._configuration:
            self._reports.attached(self._engine, configuration=link)
        elif not self._receivers.attached(link):
            self._engine.refuse(link, Condition("amqp:not-found", "a gateway serves no links here"))

    def _begin(self, told: list[LinkUp | LinkDown]) -> None:
        """Messages may leave, unless their names are in doubt."""
        link = self._waiting
        if link is None or (self._reports is not None and self._reports.held):
            return
        self._waiting = None
        self._uplink.attached(self._engine, link, self._cut)
        told.append(LinkUp(self._peer, self._uplink.batching))

    def _on_dispositions(self, event: Dispositions, now: float, told: list[LinkUp | LinkDown]) -> None:
        if event.link is self._telemetry:
            self._uplink.settled(event.items, now)
        elif self._reports is not None and event.link in (
            self._ledger,
            self._manifests,
            self._configuration,
        ):
            self._reports.settled(event.link, event.items)
            if self._reports.stuck:
                self._cut("the store cannot begin a new epoch, which the hub asks for")
            else:
                self._begin(told)

    def _on_detached(self, event: Detached, now: float) -> None:
        if event.link is self._telemetry:
            self.close(f"the peer detached {self._target!r}: {words(event.condition)}")
        else:
            self._receivers.detached(event, now)

    def _on_closed(self, event: Closed, told: list[LinkUp | LinkDown]) -> None:
        if not self._down:
            self._down = True
            if self._reason is None:
                self._detach()
            self._receivers.end()
            told.append(LinkDown(self._reason or words(event.condition)))

    def _wake(self) -> None:
        self._uplink.live.wake()

    def _cut(self, reason: str) -> None:
        self.close(reason, Condition("amqp:connection:forced", reason))

    def _end(self) -> None:
        self._receivers.end()
        self._engine.close(self._condition)
        self._wake()

    def _detach(self) -> None:
        self._uplink.detached()
        if self._reports is not None:
            self._reports.detached()


def bind_shell(uplink: Uplink, reports: Reports | None, shell: Shell) -> None:
    """Let both ask for a flush of the connection that `shell` drives."""
    uplink.carried_by(shell)
    if reports is not None:
        reports.wake = shell.flush_soon
