"""Faults and their schedule: drawn from the seed, and each heals by itself or at the end.

A fault is a method with the fault's name; `KINDS` lists them. The schedule is drawn before the run, so that a shorter
one can be tried with the same seed (`run.minimise`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from cloud.lake.commits import FAILPOINTS
from cloud.lake.faults import LakeError
from edge.broker.model.addresses import AddressType
from tests.simulation.desired import KINDS, SOUND
from tests.simulation.gateway import ALWAYS, FORWARDERS, NAME, OTHER_FILTERS, configuration
from tests.simulation.medium import BROKEN, FULL, READ_ONLY, Contents

if TYPE_CHECKING:
    from tests.simulation.world import World

WEIGHTS = {
    "power_cut": 4,
    "kill": 3,
    "restart": 2,
    "restart_without_medium": 2,
    "full_medium": 3,
    "read_only_medium": 1,
    "failing_medium": 3,
    "slow_medium": 3,
    "failing_reads": 2,
    "new_rule": 5,
    "type_change": 4,
    "new_forwarder": 3,
    "changed_filter": 3,
    "left_out_forwarder": 2,
    "cut_connections": 4,
    "partition": 2,
    "clock_jump": 1,
    "origin_raises": 3,
    "consumer_raises": 3,
    "live_raises": 2,
    "hub_kill": 3,
    "hub_kill_in_landing": 4,
    "lake_fails": 3,
    "slow_lake": 2,
    "hub_fault": 3,
    "registry_fails": 3,
    "back_up": 2,
    "put_back": 2,
    "put_back_unnoticed": 1,
    "far_crash": 3,
    "state": 3,
    "revoke": 3,
    "certificate_ends": 2,
    "new_version": 5,
    "put_back_versions": 2,
}
"""Relative frequency of each kind."""

KNOWN: frozenset[str] = frozenset()
"""Kinds that reveal open defects: they are drawn only by name."""

SHORTEST_S, LONGEST_S = 0.05, 1.0
"""Shortest and longest duration of a fault."""


class Fault(NamedTuple):
    """Entry of a schedule."""

    at_s: float
    kind: str
    lasts_s: float
    choice: int
    """Index of the client, rule or connection, where several exist."""


def schedule(random: Random, *, span_s: float, count: int, kinds: Sequence[str]) -> list[Fault]:
    """Return `count` faults of these kinds within a time span."""
    weights = [WEIGHTS[kind] for kind in kinds]
    faults = [
        Fault(
            random.random() * span_s,
            random.choices(kinds, weights)[0],
            SHORTEST_S + random.random() ** 2 * (LONGEST_S - SHORTEST_S),
            random.randrange(1 << 16),
        )
        for _ in range(count)
    ]
    return sorted(faults)


class Nemesis:
    """Applies the faults of its schedule to a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rules: dict[str, AddressType] = {}
        self._forwarders = dict(ALWAYS)
        self._copy: Contents | None = None

    def begin(self, faults: Sequence[Fault]) -> None:
        """Schedule all faults."""
        scheduler = self._world.scheduler
        for fault in faults:
            scheduler.after(fault.at_s, self._world.outside, self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        self._world.history.record("nemesis", fault.kind, round(fault.lasts_s, 3), fault.choice)
        getattr(self, f"_{fault.kind}")(fault)

    def _heal_later(self, fault: Fault, heal: object, *args: object) -> None:
        self._world.scheduler.after(fault.lasts_s, self._world.outside, heal, *args)  # type: ignore[arg-type]

    def heal(self) -> None:
        """End all faults and restore the first configuration."""
        world = self._world
        self._medium_works()
        self._lake_works()
        self._registry_works()
        world.hub.killed_at = None
        world.hub.start()
        world.network.heal()
        world.admission.want()
        world.operator.want_nothing_more()
        self._rules.clear()
        self._forwarders = dict(ALWAYS)
        self._apply()
        world.gateway.start()
        for client in world.fallible:
            client.faulty = False

    # --- the gateway's process --------------------------------------------------------------------------------

    def _power_cut(self, fault: Fault) -> None:
        self._world.gateway.kill(power=True)
        self._heal_later(fault, self._world.gateway.start)

    def _kill(self, fault: Fault) -> None:
        self._world.gateway.kill(power=False)
        self._heal_later(fault, self._world.gateway.start)

    def _restart(self, fault: Fault) -> None:
        if self._world.medium.failure is None:
            self._restart_without_medium(fault)

    def _restart_without_medium(self, fault: Fault) -> None:
        """Restart in good order, whether or not the last commit succeeds."""
        self._world.gateway.stop()
        self._heal_later(fault, self._world.gateway.start)

    def _clock_jump(self, fault: Fault) -> None:
        self._world.gateway.jump((fault.choice % 20_001 - 10_000) * 1_000_000_000)

    # --- its medium -------------------------------------------------------------------------------------------

    def _full_medium(self, fault: Fault) -> None:
        self._world.medium.failure = FULL
        self._heal_later(fault, self._medium_works)

    def _read_only_medium(self, fault: Fault) -> None:
        self._world.medium.failure = READ_ONLY
        self._heal_later(fault, self._medium_works)

    def _failing_medium(self, fault: Fault) -> None:
        self._world.medium.failure = BROKEN
        self._heal_later(fault, self._medium_works)

    def _slow_medium(self, fault: Fault) -> None:
        self._world.medium.commit_s = 0.1
        self._heal_later(fault, self._medium_works)

    def _failing_reads(self, fault: Fault) -> None:
        self._world.medium.read_fails = 0.5
        self._heal_later(fault, self._medium_works)

    def _medium_works(self) -> None:
        medium = self._world.medium
        medium.failure, medium.commit_s, medium.read_fails = None, 0.003, 0.0

    def _back_up(self, _fault: Fault) -> None:
        self._copy = self._world.medium.contents.copied()

    def _put_back(self, fault: Fault) -> None:
        """Replace a closed store by an older copy of the data directory.

        The hub has seen an opening of the store that is newer than the copy.
        """
        known = [name for names in self._world.database.lineages.values() for name in names[-1:]]
        if self._copy is not None and not {name for name, _ in self._copy.openings}.issuperset(known):
            self._replace(fault, self._copy)

    def _put_back_unnoticed(self, fault: Fault) -> None:
        """Restore the last copy, like `_put_back`, also when the hub has seen no later opening."""
        if self._copy is not None:
            self._replace(fault, self._copy)

    def _replace(self, fault: Fault, older: Contents) -> None:
        world = self._world
        world.gateway.kill(power=True)
        world.medium.put_back(older)
        world.history.record("put back", *world.medium.described())
        self._heal_later(fault, world.gateway.start)

    # --- the hub ----------------------------------------------------------------------------------------------

    def _hub_kill(self, fault: Fault) -> None:
        self._world.hub.kill(power=fault.choice % 2 == 0)
        self._heal_later(fault, self._world.hub.start)

    def _hub_kill_in_landing(self, fault: Fault) -> None:
        """Kill the hub after a step of its next landing."""
        self._world.hub.killed_at = FAILPOINTS[fault.choice % len(FAILPOINTS)]

    def _lake_fails(self, fault: Fault) -> None:
        """Make the medium of the lake fail, or succeed with a lost answer."""
        self._world.lake.failure = LakeError("the lake cannot be written")
        self._world.lake.uncertain = fault.choice % 3 == 0
        self._heal_later(fault, self._lake_works)

    def _hub_fault(self, fault: Fault) -> None:
        """Make the hub fail for a reason that is not in the data sent to it."""
        self._world.lake.failure = (MemoryError(), PermissionError(13, "not permitted"))[fault.choice % 2]
        self._world.lake.uncertain = False
        self._heal_later(fault, self._lake_works)

    def _lake_works(self) -> None:
        self._world.lake.failure = None
        self._world.hub.work_s = 0.01

    def _slow_lake(self, fault: Fault) -> None:
        self._world.hub.work_s = 0.5
        self._heal_later(fault, self._lake_works)

    def _registry_fails(self, fault: Fault) -> None:
        self._world.database.fails = 0.5
        self._heal_later(fault, self._registry_works)

    def _registry_works(self) -> None:
        self._world.database.fails = 0.0

    # --- its configuration ------------------------------------------------------------------------------------

    def _new_rule(self, fault: Fault) -> None:
        """Add and remove a second rule for a part of a topic."""
        pattern = ("plant/a/#", "plant/b/#", "plant/a/1")[fault.choice % 3]
        self._rules[pattern] = AddressType.TOPIC
        self._apply()
        self._heal_later(fault, self._drop_rule, pattern)

    def _type_change(self, fault: Fault) -> None:
        """Turn a topic into a queue for a while."""
        pattern = ("plant/b/#", "plant/a/2")[fault.choice % 2]
        self._rules[pattern] = AddressType.QUEUE
        self._apply()
        self._heal_later(fault, self._drop_rule, pattern)

    def _drop_rule(self, pattern: str) -> None:
        if self._rules.pop(pattern, None) is not None:
            self._apply()

    def _new_forwarder(self, fault: Fault) -> None:
        """Add a second forwarder for a part of what the first one sends."""
        name = sorted(FORWARDERS)[fault.choice % 2]
        self._forwarders[name] = FORWARDERS[name]
        self._world.history.record("forwards", f"forwarder/hub/{name}")
        self._apply()
        self._heal_later(fault, self._drop_forwarder, name)

    def _drop_forwarder(self, name: str) -> None:
        if self._forwarders.pop(name, None) is not None:
            self._apply()

    def _changed_filter(self, fault: Fault) -> None:
        """Give a forwarder another filter, under the same name."""
        name = sorted(ALWAYS)[fault.choice % len(ALWAYS)]
        self._forwarders[name] = OTHER_FILTERS[name]
        self._apply()
        self._heal_later(fault, self._as_at_first, name)

    def _left_out_forwarder(self, fault: Fault) -> None:
        """Remove a forwarder for a while; new messages are kept for it."""
        name = sorted(ALWAYS)[fault.choice % len(ALWAYS)]
        self._drop_forwarder(name)
        self._heal_later(fault, self._as_at_first, name)

    def _as_at_first(self, name: str) -> None:
        self._forwarders[name] = ALWAYS[name]
        self._apply()

    def _apply(self) -> None:
        rules, forwarders = tuple(self._rules.items()), tuple(self._forwarders.items())
        self._world.gateway.reconfigure(configuration(rules, forwarders))

    # --- its network and clients ------------------------------------------------------------------------------

    def _cut_connections(self, fault: Fault) -> None:
        network = self._world.network
        streams = [stream for port in (1883, 5672) for stream in network.streams(port)]
        if streams:
            network.cut(streams[fault.choice % len(streams)])

    def _partition(self, fault: Fault) -> None:
        names = [NAME, "hub", self._world.far.name, *(device.name for device in self._world.devices)]
        self._world.network.part(names[fault.choice % len(names)])
        self._heal_later(fault, self._world.network.heal)

    def _revoke(self, fault: Fault) -> None:
        """Lock the gateway out, and enrol it again later."""
        self._world.admission.revoke()
        self._heal_later(fault, self._world.admission.want)

    def _certificate_ends(self, _fault: Fault) -> None:
        self._world.admission.end_soon()

    def _new_version(self, fault: Fault) -> None:
        """Request another configuration at the hub; not every one is valid."""
        kinds = (*SOUND, *KINDS)
        self._world.operator.want(kinds[fault.choice % len(kinds)])

    def _put_back_versions(self, fault: Fault) -> None:
        """Restore the registry of versions to the state before one of them was made."""
        world = self._world
        if world.versions.put_back(fault.choice):
            world.history.record("versions put back")
            world.hub.kill(power=False)
            self._heal_later(fault, world.hub.start)

    def _far_crash(self, _fault: Fault) -> None:
        """Crash the far side: it has not stored the newest answers, and sends those messages again."""
        self._world.far.crash()

    def _state(self, fault: Fault) -> None:
        """Request a manifest now, and once more."""
        self._world.gateway.state()
        self._heal_later(fault, self._world.gateway.state)

    def _origin_raises(self, fault: Fault) -> None:
        origins = self._world.origins
        origins[fault.choice % len(origins)].faulty = True

    def _consumer_raises(self, fault: Fault) -> None:
        consumers = self._world.consumers
        consumers[fault.choice % len(consumers)].faulty = True

    def _live_raises(self, _fault: Fault) -> None:
        self._world.live.faulty = True
