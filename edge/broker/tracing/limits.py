"""Every bound of a packet trace, with unit and reason."""

from __future__ import annotations

from typing import Final

from edge.broker.limits import KIB

TRACES_MAX: Final = 8
"""Traces at a time: a few engineers at one plant. Each may hold `TRACE_EVENTS_WAITING_MAX` events."""

TRACE_EVENTS_WAITING_MAX: Final = 1_024
"""Events of one trace that its watcher has not taken, about 1 KiB each. Further ones are dropped and counted: a client
may send 100 000 packets a second, more than a person reads. This also bounds the cost of a trace in one turn of the
loop: 10 ms."""

TRACE_EARLY_EVENTS_MAX: Final = 32
"""Events of a connection before its client is known: a login by SCRAM takes ten frames."""

TRACE_HEAD_BYTES_MAX: Final = 72 * KIB
"""Bytes read of a packet or frame: a topic name may have 64 KiB. Payloads behind them are skipped."""

TRACE_ADDRESSES_KEPT_MAX: Final = 1_024
"""Addresses remembered for one connection, by packet identifier, link or delivery, for lines of answers. A line has no
address once it is forgotten."""

TRACE_RUNS_WAITING_MAX: Final = 1_024
"""Runs of one trace that wait for their commit; the outcomes of further ones are not reported."""

TRACE_TEXT_CHARACTERS_MAX: Final = 200
"""Characters of one text of a peer in a line: an address may have 1 KiB, a reason 64 KiB."""

TRACE_FILTERS_SHOWN_MAX: Final = 8
"""Topic filters of one SUBSCRIBE in a line; a packet may have thousands."""

TRACE_S_MAX: Final = 86_400.0
"""Seconds until the gateway ends a trace: long enough to wait overnight for a device that fails once a day. A forgotten
trace ends by itself, because a traced client is served more slowly."""

TRACE_PAGE_S: Final = 900.0
"""Seconds until a trace in a browser ends, unless it requests another time: a page is easily left open."""

TRACE_PAGE_EVENTS: Final = 2_000
"""Events until a trace in a browser ends, unless it requests another number: more than a person reads, about 1 MiB."""

TRACE_PAYLOAD_BYTES_MAX: Final = 512
"""Bytes of a payload in an event, where a trace requests them: enough for a reading in JSON."""

TRACE_IDLE_S: Final = 5.0
"""Seconds between two keep-alives to a watcher without events."""
