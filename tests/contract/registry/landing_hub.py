"""Hub that lands and folds, without a process."""

from __future__ import annotations

from cloud.hub.groups import GatewaySession, LandingGroup, LandingOutcome, Presence, QueueEntry
from cloud.hub.lander import Lander
from cloud.lake.landing import Landing
from cloud.lake.rows import ReceivedBatch
from tests.contract.registry.conftest import HERE, Place
from tests.support.memory_lake import MemoryLake


class LandingHub:
    """Registry and lander of one hub, with a clock that the test sets."""

    def __init__(self, place: Place, lake: MemoryLake, writer: str = HERE) -> None:
        self.now_s = 0.0
        self.registry = place.open(writer, clock=lambda: self.now_s)
        self.registry.commits.write_to(lake)
        self.lander = Lander(self.registry, Landing(lake, self.registry.commits), clock=lambda: self.now_s)

    def connect(self, *gateways: str) -> None:
        self.registry.directory.presence(
            {("default", gateway): Presence("-", connected=True, at_us=1, connects=1) for gateway in gateways}
        )

    def disconnect(self, *gateways: str) -> None:
        self.registry.directory.presence(
            {("default", gateway): Presence("-", connected=False, at_us=2) for gateway in gateways}
        )

    def land(self, *batches: ReceivedBatch) -> None:
        """Land batches in one group."""
        entries = []
        for received in batches:
            session = GatewaySession(received.tenant, received.gateway, "-")
            entries.append(QueueEntry(session, received, lambda _outcome, _words: None, 0.0))
        self.lander.land(LandingGroup(entries), 1_000)
        assert [entry.verdict for entry in entries] == [LandingOutcome.LANDED] * len(entries)
