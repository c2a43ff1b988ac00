"""Live copies: what a tenant's gateways send now is given to the tenant's applications that receive it now.

A copy is an AMQP message as a gateway sends it to a cloud that knows no batches (`bridge.plain`): with annotations for
gateway, epoch, sequence, device and time of receipt. It promises nothing. What comes by the backlog lane is old, and is
not copied; what an application, or this module, has no room for is dropped and counted; what a gateway sends again may
be copied again. The lake has everything once.

The landing goes first: nothing is made where nobody receives, and making takes a fifth of the loop's time at most.
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
"""What a run takes beside its messages while it waits."""


@dataclass(slots=True)
class CopyFigures:
    """Of one tenant, in messages since the hub started."""

    made: int = 0
    missed: int = 0
    """Not made, as too many waited to be made; or not taken in time by an application."""


@dataclass(slots=True)
class _Queue:
    """What one tenant's applications are to get, in order."""

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
        """`clock`: seconds that do not go back; `later` calls a function after so many of them. `bytes_max`: of
        messages that wait to be copied, all tenants' together."""
        self._figures: dict[str, CopyFigures] = {}
        self._spaces = spaces
        self._clock = clock
        self._later = later
        self._bytes_max = bytes_max
        self._queues: OrderedDict[str, _Queue] = OrderedDict()
        """Of tenants for whom something waits; the first is next."""

    def take(self, tenant: str, gateway: str, batch: Batch) -> None:
        """A gateway of this tenant has sent a batch, which has not been trimmed."""
        space = self._spaces.get(tenant)
        if space is None or batch.lane is not BatchLane.LIVE or not space.listened:
            return
        live = space.router.subscriptions.live
        wanted = {piece.address for piece in batch.ranges if live.match(piece.address)}
        if wanted:
            self._add(
                tenant, Hop(gateway, batch.epoch), [each for each in batch.stored() if each.run.address in wanted]
            )

    def figures(self, tenant: str) -> CopyFigures:
        """Of a tenant, now."""
        space, own = self._spaces.get(tenant), self._of(tenant)
        return CopyFigures(own.made, own.missed + (space.router.pool.dropped if space is not None else 0))

    def all_figures(self) -> dict[str, CopyFigures]:
        """Of every tenant that has a space."""
        return {space.tenant: self.figures(space.tenant) for space in self._spaces}

    # --- inside -----------------------------------------------------------------------------------------------

    def _of(self, tenant: str) -> CopyFigures:
        return self._figures.setdefault(tenant, CopyFigures())

    def _add(self, tenant: str, hop: Hop, stored: list[Stored]) -> None:
        size = sum(each.run.size + RUN_BYTES for each in stored)
        queue = self._queues.get(tenant) or _Queue()
        if queue.bytes + size > self._bytes_max // len(self._spaces):
            self._of(tenant).missed += sum(len(each.run) for each in stored)
            return
        if not self._queues:
            self._later(0.0, self._turn)
        self._queues[tenant] = queue
        queue.runs.extend((hop, each) for each in stored)
        queue.bytes += size

    def _turn(self) -> None:
        """Make copies for a while, of every tenant some; then the loop is for others."""
        began = now = self._clock()
        while self._queues and now - began < COPIES_SLICE_S:
            tenant, queue = self._queues.popitem(last=False)
            self._make_some(tenant, queue)
            if queue.runs:
                self._queues[tenant] = queue
            now = self._clock()
        if self._queues:
            self._later((now - began) * COPIES_REST, self._turn)

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
            self._of(tenant).made += len(run)


def _copy(hop: Hop, sequence: int, run: Run, space: TenantSpace) -> Run:
    """The run as it is delivered: messages of AMQP, each with its header, as nothing is kept of them or delivered
    again. They are at most once, so they have no quality of service."""
    return Run(run.address, run.device, AMQP, b"", messages(hop, sequence, run), space.router.now_ns())
