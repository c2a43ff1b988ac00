"""Limits of events, with unit and reason."""

from __future__ import annotations

from typing import Final

EVENTS_KEPT_S: Final = 30 * 86_400
"""Time that events are kept: a client may be away for a month."""

EVENTS_TENANT_MAX: Final = 100_000
"""Events kept of each tenant, and of the hub itself, the latest: some 40 MiB of the registry. No tenant pushes out the
events of others."""

EVENTS_MAX: Final = 500_000
"""Events kept of all tenants together: some 200 MiB of the registry. Above it those with the most lose their oldest
ones."""

EVENTS_CLEANUP_S: Final = 600.0
"""Interval of deleting old events; in between there may be more than the limits."""

EVENT_FILTER_MAX: Final = 50
"""Types, or gateways, that one request may name."""

EVENTS_PAGE: Final = 200
"""Events that a stream reads at once from the registry, some 60 kB."""

EVENTS_CACHED_MAX: Final = 2_000
"""Latest events in memory, some 1 MiB: streams that are up to date read no registry."""

EVENTS_INTERVAL_S: Final = 1.0
"""Longest time until an event reaches a stream: without notices the registry is read so often while there are
streams."""

EVENT_STREAMS_MAX: Final = 200
"""Streams of one hub at a time; each has a connection, a task and 64 kB of events at most."""

EVENT_STREAMS_USER_MAX: Final = 20
"""Streams of one user at a time at one hub: no user takes those of the others."""

EVENT_STALL_S: Final = 30.0
"""Time that a client may take for 32 kB of events; then its stream ends, and it goes on from its last event."""

PROBLEMS_INTERVAL_S: Final = 5.0
"""Interval of writing the problems of this hub and of its gateways that have changed."""

PROBLEMS_REPEAT_S: Final = 60.0
"""Interval of comparing the problems of this hub with those in the registry again: another hub ends those of a hub that
was silent."""

PROBLEMS_CLEANUP_S: Final = 600.0
"""Interval of ending problems that nothing reports any more."""

PROBLEMS_UNHEARD_S: Final = 1_800.0
"""Time that a gateway is connected without naming its problems until those in the registry end: gateways name them
every ten minutes, and earlier versions never."""

GATEWAY_SILENT_S: Final = 7 * 86_400.0
"""Time that a gateway is away until its problems end: they may have been solved, or be others."""

PROBLEMS_AT_ONCE_MAX: Final = 200
"""Gateways and hubs with problems that are written in one transaction."""

GATEWAY_PROBLEMS_MAX: Final = 20
"""Problems of one gateway that the registry has; it sends the most serious ones first."""
