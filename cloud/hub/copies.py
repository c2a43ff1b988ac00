"""Live copies: messages of a tenant's gateways for the tenant's applications that receive them now.

A copy is an AMQP message as a gateway sends it to a server that knows no batches (`bridge.plain`), with annotations for
gateway, epoch, sequence, device and time of receipt. Copies are at most once and best effort: messages of the backlog
lane are not copied, copies without room are dropped and counted, and a message that a gateway repeats may be copied
again. The lake has every message once.

The landing takes precedence. Nothing is copied while no application receives, and copying takes at most a fifth of the
loop's time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from bridge.batch import Batch
from bridge.lane import BatchLane
from bridge.message import AMQP, Run, Stored
from bridge.plain import Hop, messages
from cloud.hub.limits import COPIED_AT_ONCE, COPIES_REST, COPIES_SLICE_S, COPIES_WAITING_BYTES_MAX
from cloud.hub.spaces import Spaces, TenantSpace

RUN_BYTES = 256
"""Bytes of a waiting run in addition to its messages."""


@dataclass(slots=True)
class CopyFigures:
    """Copies of one tenant since the hub started, in messages."""

    made: int = 0
    missed: int = 0
    """Dropped because too many waited, or because an application was too slow."""


@dataclass(slots=True)
class _Queue:
    """Runs to copy for one tenant's applications, in order."""

    runs: deque[tuple[Hop, Stored]] = field(default_factory=deque)
    bytes: int = 0


class Copies:
    """Makes the copies for all spaces of a hub. On the loop's thread."""

    def __init__(
        self,
        spaces: Spaces,
        *,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        bytes_max: int = COPIES_WAITING_BYTES_MAX,
    ) -> None:
        """`clock`: monotonic seconds; `later` calls a function after some seconds. `bytes_max`: limit of all
        messages that wait to be copied."""
        self._figures: dict[str, CopyFigures] = {}
        self._spaces = spaces
        self._clock = clock
        self._later = later
        self._bytes_max = bytes_max
        self._queues: OrderedDict[str, _Queue] = OrderedDict()
        """Tenants with pending runs; the first is next."""

    def take(self, tenant: str, gateway: str, batch: Batch) -> None:
        """Queue copies of a batch that a gateway of this tenant sent. Duplicates are not removed from it."""
        space = self._spaces.get(tenant)
        if space is None or batch.lane is not BatchLane.LIVE or not space.has_live_subscription:
            return
        live = space.router.subscriptions.live
        wanted = {piece.address for piece in batch.ranges if live.match(piece.address)}
        if wanted:
            self._add(
                tenant, Hop(gateway, batch.epoch), [each for each in batch.stored() if each.run.address in wanted]
            )

    def figures(self, tenant: str) -> CopyFigures:
        """Return the figures of a tenant."""
        space, own = self._spaces.get(tenant), self._tenant_figures(tenant)
        return CopyFigures(own.made, own.missed + (space.router.pool.dropped if space is not None else 0))

    def all_figures(self) -> dict[str, CopyFigures]:
        """Return the figures of every tenant with a space."""
        return {space.tenant: self.figures(space.tenant) for space in self._spaces}

    # --- inside -----------------------------------------------------------------------------------------------

    def _tenant_figures(self, tenant: str) -> CopyFigures:
        return self._figures.setdefault(tenant, CopyFigures())

    def _add(self, tenant: str, hop: Hop, stored: list[Stored]) -> None:
        size = sum(each.run.size + RUN_BYTES for each in stored)
        queue = self._queues.get(tenant) or _Queue()
        if queue.bytes + size > self._bytes_max // len(self._spaces):
            self._tenant_figures(tenant).missed += sum(len(each.run) for each in stored)
            return
        if not self._queues:
            self._later(0.0, self._copy_slice)
        self._queues[tenant] = queue
        queue.runs.extend((hop, each) for each in stored)
        queue.bytes += size

    def _copy_slice(self) -> None:
        """Make copies for `COPIES_SLICE_S`, taking turns among tenants; then yield the loop."""
        began = now = self._clock()
        while self._queues and now - began < COPIES_SLICE_S:
            tenant, queue = self._queues.popitem(last=False)
            self._make_some(tenant, queue)
            if queue.runs:
                self._queues[tenant] = queue
            now = self._clock()
        if self._queues:
            self._later((now - began) * COPIES_REST, self._copy_slice)

    def _make_some(self, tenant: str, queue: _Queue) -> None:
        hop, stored = queue.runs.popleft()
        run = stored.run
        if len(run) > COPIED_AT_ONCE:
            rest = Stored(stored.position, stored.sequence + COPIED_AT_ONCE, run.part(COPIED_AT_ONCE, len(run)))
            queue.runs.appendleft((hop, rest))
            run = run.part(0, COPIED_AT_ONCE)
            queue.bytes -= run.size
        else:
            queue.bytes -= run.size + RUN_BYTES
        space = self._spaces.get(tenant)
        if space is not None:
            space.router.publish_live(_copy(hop, stored.sequence, run, space))
            self._tenant_figures(tenant).made += len(run)


def _copy(hop: Hop, sequence: int, run: Run, space: TenantSpace) -> Run:
    """Return the run to deliver: AMQP messages, each with its header, because nothing is stored or redelivered. Copies
    are at most once, so they have no quality of service."""
    return Run(run.address, run.device, AMQP, b"", messages(hop, sequence, run), space.router.now_ns())
