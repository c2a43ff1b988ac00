"""Check a history of a fleet: a pure function from recorded events to violations.

A name has one *life*, from the time when it is known until it is forgotten. A request by name belongs to a life. A
request for a selector applies to the gateways that the selector matches. A request counts from the time when it is in
the registry.

The events that the checker reads, by `Event.what`:

- ``said`` mark, kind, how, target: an operator is about to request this, by ``name``, ``selector`` or ``rollout``;
- ``seen`` `seen.Seen`: the content of the registry after a transaction;
- ``backed up`` number · ``put back`` number: the registry is that copy;
- ``registry fails`` · ``registry works`` · ``start`` hub · ``hub kill``;
- ``step`` step, roll-out: an operator is about to apply this step to the roll-out;
- ``offered`` machine, gateway, version, mark: the hub sends this down;
- ``versions`` machine, newest, confirmed, its mark, tried, its mark: the versions on a machine's disk;
- ``followed`` machine, mark: the machine applies this version;
- ``got`` machine, command · ``done`` machine, command · ``told`` command, state;
- ``at last`` gateway, machine, delicate, mark, version, state: the final state;
- ``stuck`` what does not become idle · ``raised`` process, error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tests.simulation.checker import Violation
from tests.simulation.fleet.seen import Rolling, Seen
from tests.simulation.history import Event

GRACE_S: Final = 1.5
"""Longest time until a healthy hub has read its registry again and its messages have arrived."""
EVERYBODY: Final = ("nothing", "a forwarder")
"""Kinds that every machine can apply."""
FINAL: Final = frozenset({"delivered", "expired", "rejected", "cancelled"})


class Said(NamedTuple):
    """Request of an operator."""

    mark: int
    kind: str
    how: str
    target: str
    life: int
    """Life of the name, for a request by name."""


class Copy(NamedTuple):
    """Content of the registry at the time of a copy."""

    at_s: float
    seen: Seen
    lives: Mapping[str, int]


def check(events: Iterable[Event]) -> list[Violation]:
    """Return every violation, in the order in which they were noticed."""
    return Checker().check(events)


class Checker:
    """Walks through a history once."""

    def __init__(self) -> None:
        self._violations: list[Violation] = []
        self._event: Event
        self._said: dict[int, Said] = {0: Said(0, "nothing", "nobody", "", 0)}
        self._since_s: dict[int, float] = {}
        """Time when the request came into the registry, by mark."""
        self._seen = Seen((), (), (), (), (), ())
        self._lives: dict[str, int] = defaultdict(int)
        self._labels: dict[str, list[tuple[float, dict[str, str]]]] = defaultdict(list)
        """Labels of this life with their start times, by gateway."""
        self._copies: list[Copy] = []
        self._put_back = False
        self._well_s: float | None = 0.0
        """Time since which hub and registry work; None when they do not."""
        self._hub_up = self._registry_works = True
        self._withheld_s: dict[str, float] = {}
        """Time since which a roll-out must not continue, by roll-out."""
        self._resumed: set[str] = set()
        """Roll-outs that an operator resumed despite failures."""
        self._offered: dict[str, set[int]] = defaultdict(set)
        self._confirmed: dict[str, set[int]] = defaultdict(set)
        """Confirmed marks, by machine."""
        self._trial: dict[str, tuple[int, int]] = {}
        self._sent: dict[str, tuple[str, int]] = {}
        """Gateway and life of each command."""
        self._got: dict[str, list[str]] = defaultdict(list)
        self._told: dict[str, list[str]] = defaultdict(list)

    def check(self, events: Iterable[Event]) -> list[Violation]:
        on: dict[str, Callable[..., None]] = {
            name.removeprefix("_on_").replace("_", " "): getattr(self, name)
            for name in dir(self)
            if name.startswith("_on_")
        }
        for event in events:
            self._event = event
            if event.what in on:
                on[event.what](*event.fields)
        self._check_commands()
        return self._violations

    def _wrong(self, text: str) -> None:
        self._violations.append(Violation(self._event.step, text))

    # --- requests of operators ----------------------------------------------------------------------------------------

    def _on_said(self, mark: int, kind: str, how: str, target: str) -> None:
        self._said[mark] = Said(mark, kind, how, target, self._lives[target])

    def _on_seen(self, seen: Seen) -> None:
        now_s = self._event.at_s
        self._live(set(seen.known), set(self._seen.known))
        labels = {gateway: dict(mine) for gateway, mine in seen.labels}
        for gateway in seen.known:
            mine = labels.get(gateway, {})
            if not self._labels[gateway] or self._labels[gateway][-1][1] != mine:
                self._labels[gateway].append((now_s, mine))
        for mark in (*(mark for _, mark in seen.selectors), *(each.mark for _, each in seen.rollouts)):
            self._since_s.setdefault(mark, now_s)
        for _, wants in seen.wanted:
            self._since_s.setdefault(wants.mark, now_s)
        self._look_at_rollouts(dict(seen.rollouts), now_s)
        for command, gateway, _, _ in seen.commands:
            self._sent.setdefault(command, (gateway, self._lives[gateway]))
        self._seen = seen

    def _live(self, known: set[str], before: set[str]) -> None:
        for gateway in before - known:
            self._lives[gateway] += 1
            self._labels[gateway] = []

    def _look_at_rollouts(self, rollouts: Mapping[str, Rolling], now_s: float) -> None:
        for name, each in rollouts.items():
            if each.state in ("running", "done"):
                self._withheld_s.pop(name, None)
            else:
                self._withheld_s.setdefault(name, now_s)

    def _on_step(self, step: str, rollout: str) -> None:
        if step == "resume":
            self._resumed.add(rollout)

    def _on_backed_up(self, _number: int) -> None:
        self._copies.append(Copy(self._event.at_s, self._seen, dict(self._lives)))

    def _on_put_back(self, number: int) -> None:
        """Forget the requests that came after the copy."""
        copy = self._copies[number]
        self._put_back = True
        self._seen = copy.seen
        self._lives = defaultdict(int, copy.lives)
        self._since_s = {mark: at_s for mark, at_s in self._since_s.items() if at_s <= copy.at_s}
        self._withheld_s.clear()
        self._labels = defaultdict(list, {name: list(entries) for name, entries in self._labels.items()})
        for gateway, mine in ((gateway, dict(mine)) for gateway, mine in copy.seen.labels):
            self._labels[gateway].append((self._event.at_s, mine))

    def _on_start(self, _name: str) -> None:
        self._hub_up = True
        self._work()

    def _on_hub_kill(self) -> None:
        self._hub_up = False
        self._work()

    def _on_registry_fails(self) -> None:
        self._registry_works = False
        self._work()

    def _on_registry_works(self) -> None:
        self._registry_works = True
        self._work()

    def _work(self) -> None:
        well = self._hub_up and self._registry_works
        self._well_s = (self._well_s if self._well_s is not None else self._event.at_s) if well else None

    def _knows_since(self, at_s: float) -> bool:
        """Return whether a hub had the time to notice an event of that time."""
        return self._well_s is not None and self._event.at_s - max(self._well_s, at_s) > GRACE_S

    # --- offers of the hub --------------------------------------------------------------------------------------------

    def _on_offered(self, machine: str, gateway: str, version: int, mark: int) -> None:
        self._offered[machine].add(mark)
        said = self._said.get(mark)
        if said is None:
            self._wrong(f"{machine} is offered mark {mark}, which nobody has said")
        elif said.how == "name" and (said.target, said.life) != (gateway, self._lives[gateway]):
            self._wrong(f"{machine} is offered mark {mark}, which was said to another one called {said.target}")
        elif said.how == "selector" and not self._was_chosen(gateway, said.target):
            self._wrong(f"{machine} is offered mark {mark} of {said.target}, which has never chosen it")
        elif said.how == "rollout":
            self._check_rollout(machine, gateway, version, said)

    def _check_rollout(self, machine: str, gateway: str, version: int, said: Said) -> None:
        found = [(name, each) for name, each in self._seen.rollouts if each.mark == said.mark]
        wants = dict(self._seen.wanted).get(gateway)
        if not found or wants is None or (wants.version, wants.mark) != (version, said.mark) or wants.rollout is None:
            return  # the gateway returns to it, or has it from a selector since the roll-out ended
        [(name, rolling)] = found
        if name in self._withheld_s and self._knows_since(self._withheld_s[name]):
            self._wrong(f"{machine} is offered mark {said.mark} of roll-out {name}, which is {rolling.state}")
        mine = [(wave, phase) for member, wave, phase in rolling.members if member == gateway]
        if not mine:
            if said.target == "*" or not self._was_chosen(gateway, said.target):
                self._wrong(f"{machine} is offered mark {said.mark} of roll-out {name}, and has no part in it")
            return
        self._check_waves(machine, name, rolling, mine[0][0])

    def _check_waves(self, machine: str, name: str, rolling: Rolling, wave: int) -> None:
        """Check that the gateways of each earlier wave have the version, as far as the roll-out waited for them."""
        for earlier in range(wave):
            members = [(member, phase) for member, number, phase in rolling.members if number == earlier]
            taken = [member for member, _ in members if rolling.mark in self._confirmed_by(member)]
            passed = [member for member, phase in members if phase in ("superseded", "left-out", "forgotten")]
            if not (taken or passed or name in self._resumed or self._put_back):
                self._wrong(
                    f"{machine} of wave {wave + 1} is offered roll-out {name}; nobody of wave {earlier + 1} has it"
                )

    def _confirmed_by(self, gateway: str) -> set[int]:
        return set().union(*(marks for machine, marks in self._confirmed.items() if machine.startswith(f"{gateway}#")))

    def _was_chosen(self, gateway: str, text: str) -> bool:
        return any(_matches(text, mine) for _, mine in self._labels[gateway])

    # --- actions of machines --------------------------------------------------------------------------------------

    def _on_versions(self, machine: str, newest: int, _version: int, confirmed: int, tried: int, mark: int) -> None:
        if tried and (tried, mark) != self._trial.get(machine):
            self._trial[machine] = (tried, mark)
            if mark not in self._offered[machine]:
                self._wrong(f"{machine} tries version {tried} (mark {mark}), and was never offered it")
        if confirmed not in self._confirmed[machine]:
            self._confirmed[machine].add(confirmed)
            if confirmed and confirmed not in self._offered[machine]:
                self._wrong(f"{machine} has confirmed mark {confirmed}, and was never offered it")

    def _on_followed(self, machine: str, mark: int) -> None:
        if mark and mark not in self._offered[machine]:
            self._wrong(f"{machine} goes by mark {mark}, and was never offered it")

    # --- in the end ---------------------------------------------------------------------------------------------------

    def _on_stuck(self, text: str) -> None:
        self._wrong(f"it does not come to rest: {text}")

    def _on_raised(self, process: str, error: str) -> None:
        self._wrong(f"{process} raised {error}")

    def _on_at_last(self, gateway: str, machine: str, delicate: bool, mark: int, version: int, state: str) -> None:
        wants = dict(self._seen.wanted).get(gateway)
        expected = self._expected(gateway)
        if expected is not None and (wants is None or wants.mark != expected.mark):
            has = f"mark {wants.mark} is wanted of it" if wants is not None else "nothing is wanted of it"
            self._wrong(f"{gateway}: mark {expected.mark} was said last, {expected.how} {expected.target}; {has}")
        if wants is None or wants.version != version:
            return
        if state == "confirmed" and mark != wants.mark:
            self._wrong(f"{machine} goes by mark {mark}, and the hub thinks it goes by {wants.mark}")
        kind = self._said[wants.mark].kind
        withheld = wants.rollout in self._withheld_s
        can = kind in EVERYBODY or (kind == "rough" and not delicate)
        if can and state != "confirmed" and not withheld and not self._put_back:
            self._wrong(f"{machine} does not take version {version} (mark {wants.mark}, {kind}): {state}")

    def _expected(self, gateway: str) -> Said | None:
        """Return the mark that a gateway must have in the end, or None if it is open.

        The last request to or for the gateway counts, if no later one applied to it for a while.
        """
        if gateway not in self._seen.known:
            return None
        there = [self._said[mark] for mark in self._since_s if self._since_s[mark] > 0 and mark]
        by_name = [
            each for each in there if each.how == "name" and (each.target, each.life) == (gateway, self._lives[gateway])
        ]
        selectors = dict(self._seen.selectors)
        labels = dict(dict(self._seen.labels).get(gateway, ()))
        chosen = [self._said[mark] for text, mark in selectors.items() if _matches(text, labels)]
        candidates = [*by_name, *chosen]
        if not candidates:
            return None
        last = max(candidates, key=lambda each: self._since_s.get(each.mark, 0.0))
        later = [each for each in there if self._since_s[each.mark] > self._since_s.get(last.mark, 0.0)]
        return None if any(self._may_count(each, gateway) for each in later) else last

    def _may_count(self, said: Said, gateway: str) -> bool:
        """Return whether the request applied to this gateway for a while."""
        if said.how == "name":
            return False
        chose = said.how == "rollout" and any(
            each.mark == said.mark and any(member == gateway for member, _, _ in each.members)
            for _, each in self._seen.rollouts
        )
        return chose or (said.target != "*" and self._was_chosen(gateway, said.target))

    # --- commands -----------------------------------------------------------------------------------------------------

    def _on_got(self, machine: str, command: str) -> None:
        gateway, life = self._sent.get(command, ("", -1))
        if (gateway, life) != (machine.partition("#")[0], self._lives[gateway]):
            self._wrong(f"{machine} gets command {command}, which was sent to another one called {gateway}")
        self._got[command].append(machine)

    def _on_told(self, command: str, state: str) -> None:
        if state in FINAL:
            self._told[command].append(state)

    def _check_commands(self) -> None:
        for command, _, state, reason in self._seen.commands:
            if state not in FINAL and not self._put_back:  # a receipt is repeated until a hub has it; the copy lacks it
                self._wrong(f"command {command} is {state} for ever")
            if state in FINAL and state not in self._told[command] and not self._put_back:
                self._wrong(f"command {command} is {state}, and nobody was told")
            if state == "rejected" and "may have" not in reason and self._got[command] and not self._put_back:
                self._wrong(f"command {command} is rejected ({reason}), and {self._got[command]} has it")
            if state == "delivered" and not self._got[command]:
                self._wrong(f"command {command} is delivered, and nobody has got it")


def _matches(text: str, labels: Mapping[str, str]) -> bool:
    """Return whether a selector of `key=value` and `key!=value` matches these labels."""

    def holds(word: str) -> bool:
        key, verb, value = word.partition("!=") if "!=" in word else word.partition("=")
        return (labels.get(key) == value) is (verb == "=")

    return all(holds(word) for word in text.split(","))


def summary(history: Iterable[Event]) -> str:
    """Count the events."""
    counts: dict[str, int] = defaultdict(int)
    for event in history:
        counts[event.what] += 1
    return ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
