"""End-to-end probe of a connector, without a message to any address.

To a hub it sends a ledger document without ranges. The hub lands it like any other, so its answer proves that the hub
receives, lands and acknowledges; nothing of it is in the lake. For any other peer it checks that the links are
attached.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from edge.appliance.crossing.documents import PROBE_S, ProbeResult
from edge.broker.router.uplinks import AnyConnector, is_to_hub


async def probe(uplink: AnyConnector, clock_s: Callable[[], float] = time.monotonic) -> ProbeResult:
    """Probe one connector, for at most `PROBE_S`."""
    name, state = uplink.connector.name, uplink.dialer.state
    if state.paused:
        return ProbeResult(name, False, None, "it is paused")
    if not state.connected:
        return ProbeResult(name, False, None, f"not connected: {state.last_error or 'no attempt has ended yet'}")
    if not (is_to_hub(uplink) and state.batching):
        return ProbeResult(name, True, None, f"{state.peer or 'the peer'} is attached; only hubs answer probes")
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    began = clock_s()

    def done(kept: bool) -> None:
        if not answer.done():
            answer.set_result(kept)

    uplink.reports.ledger({"ranges": []}, done)
    try:
        async with asyncio.timeout(PROBE_S):
            kept = await answer
    except TimeoutError:
        return ProbeResult(name, False, None, f"the hub has not answered for {PROBE_S:g} s: see its /healthz")
    passed = clock_s() - began
    return ProbeResult(name, kept, passed, "landed and answered" if kept else "the hub does not understand the probe")
