"""Problems of the connectors of one address space."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from bridge.dialer import LinkState
from bridge.hub_addresses import IDENTITY_SHARED
from edge.appliance.crossing.documents import autonomy
from edge.appliance.network_health import network_problems
from edge.broker.configuration import ConnectorType
from edge.broker.delivery.durable import FORWARDER_PREFIX
from edge.broker.router.uplinks import AnyConnector, Uplinks, is_to_hub
from edge.health.problems import FoundProblem, Severity
from edge.health.stall_detector import STALLED_S, StallDetector
from edge.output.amounts import counted, verb
from edge.output.text import word

BUDGET_NEAR: Final = 0.8
"""Share of a month's data budget from which a warning is shown."""

HUB: Final = "the hub"

SHARED_IDENTITY_S: Final = 60.0
"""Time for which the hub's report of a shared identity counts: it displaces one of the machines about every 15 s."""

UNAUTHORIZED: Final = "amqp:unauthorized-access: "
"""Prefix of the peer's reason in the last error of an uplink."""


class ConnectorHealth:
    """Finds connectors that are stalled, refused or away."""

    def __init__(
        self,
        uplinks: Uplinks,
        room_hours: Callable[[], float | None],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`room_hours`: hours until the store is full."""
        self._uplinks = uplinks
        self._room_hours = room_hours
        self._hubs = StallDetector(monotonic_s)

    def problems(self) -> Iterator[FoundProblem]:
        """Yield the problems of the connectors, and the messages for forwarders that are no longer configured."""
        for uplink in self._uplinks:
            yield from self._hub(uplink)
        for name, waiting in self._uplinks.left.items():
            if waiting:
                stored = f"up to {counted(waiting, 'message')} {verb(waiting, 'waits', 'wait')} for it"
                what = f"it is no longer configured; {stored}, and new messages are kept too"
                purge = f"waypost store purge --cursor {word(FORWARDER_PREFIX + name)}"
                step = f"apply it again; or stop the gateway and {purge}"
                yield FoundProblem(f"forwarder {name}", what, step, Severity.WARNING)
        yield from network_problems(self._uplinks.network)

    def _hub(self, uplink: AnyConnector) -> Iterator[FoundProblem]:
        """Yield the problems of a peer: an error when it is connected and takes nothing, or refuses the link; a
        notice while it is away."""
        name, state = f"connector {uplink.connector.name}", uplink.dialer.state
        accepted = uplink.figures.messages_accepted
        reached = state.connected or time.time() - state.since < STALLED_S
        if self._hubs.is_stalled(name, accepted, busy=reached and not state.paused and uplink.backlog > 0):
            peer = peer_words(uplink)
            what = f"{peer} is connected, messages wait for it, and it has accepted none for a minute"
            own = "the hub's own problems (its /healthz)" if peer == HUB else "what the peer's own log says"
            yield FoundProblem(name, what, f"see {own}, and the last error of `waypost bridge status`")
        elif self._hubs.is_stalled(f"{name} refused", True, busy=state.refused and not state.paused):
            _, _, why = (state.last_error or "").partition(UNAUTHORIZED)
            if why:
                step = "at the hub: waypost gateway list, and a token for this gateway; then waypost enrol here"
                if "was removed" in why:  # its tenant
                    step = "ask the operator of the hub for a token of another tenant; then waypost enrol here"
                yield FoundProblem(name, f"the hub refuses this gateway: {why}", step)
                return
            what = "the peer does not accept the link: wrong certificate, wrong credentials, or not the expected peer"
            yield FoundProblem(name, what, "see the last error of `waypost bridge status`, and `waypost doctor`")
        if (found := shared_identity(name, state, time.time())) is not None:
            yield found
        elif state.paused:
            step = f"`waypost bridge resume {word(uplink.connector.name)}`{self._room_left()}"
            yield FoundProblem(name, f"paused: messages for {peer_words(uplink)} wait here", step, Severity.NOTICE)
        elif self._hubs.is_stalled(f"{name} away", True, busy=not (reached or state.refused)):
            what = f"{peer_words(uplink)} cannot be reached: messages wait here, and nothing is lost"
            yield FoundProblem(
                name, what, f"the cause is in `waypost bridge status`{self._room_left()}", Severity.NOTICE
            )
        yield from budget_problems(name, uplink)
        for forwarder, why in uplink.faults.items():
            step = "raise maxConsumers of the Address, or end another consumer; it is retried automatically"
            yield FoundProblem(f"forwarder {forwarder}", f"it receives nothing from its address: {why}", step)

    def _room_left(self) -> str:
        hours = self._room_hours()
        return f"; the store has space for {autonomy(hours)} at the present rate" if hours else ""


def shared_identity(name: str, state: LinkState, utc_s: float) -> FoundProblem | None:
    """Return the problem when the hub reports that another machine uses this gateway's identity too."""
    _, shared, why = (state.ended or "").partition(f"{IDENTITY_SHARED}: ")
    if not shared or not 0 <= utc_s - state.ended_at < SHARED_IDENTITY_S:
        return None
    step = "take the copied card out; at the hub make a token for this gateway, then waypost enrol here"
    return FoundProblem(name, why, step, Severity.WARNING)


def peer_words(uplink: AnyConnector) -> str:
    """Return the name of a connector's peer for people."""
    connector = uplink.connector
    return HUB if connector.type is ConnectorType.WAYPOST else f"the {connector.type.value} peer"


def budget_problems(name: str, uplink: AnyConnector) -> Iterator[FoundProblem]:
    """Yield the problem when four fifths of the month's data budget, or all of it, are used."""
    pacer = uplink.uplink.pacer if is_to_hub(uplink) else None
    if pacer is None or pacer.used < BUDGET_NEAR:
        return
    if pacer.is_used_up:
        what = "the month's data budget is used up: messages wait in the store until the month (UTC) is over"
        yield FoundProblem(f"{name} budget", what, "raise pace.monthlyBudget of the connector, or wait")
    else:
        what = "four fifths of the month's data budget are used"
        step = "find what sends the most; or raise pace.monthlyBudget of the connector"
        yield FoundProblem(f"{name} budget", what, step, Severity.WARNING)
