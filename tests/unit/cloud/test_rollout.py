"""Waves of a roll-out: their gateways, their time, and the reasons to halt."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.hub.rollout import (
    MemberPhase,
    ObservedGateway,
    RolloutMember,
    RolloutPace,
    RolloutState,
    RolloutStep,
    Wave,
    WavesError,
    make_members,
    parse_waves,
    plan_step,
    resume_members,
)

PACE = RolloutPace(soak_s=10.0, away_s=100.0, failures_max=0)
SECOND = 1_000_000


class Fleet:
    """Connected gateways that accept their version, unless a test changes one."""

    def __init__(self, names: Sequence[str], sizes: Sequence[int], pace: RolloutPace = PACE) -> None:
        self.pace = pace
        left = list(names)
        found = [Wave("", [left.pop(0) for _ in range(size)]) for size in sizes]
        self.known = {each.gateway: each for each in make_members(found, 0)}
        self.seen = {name: ObservedGateway(connected=True, wanted=0, version=0) for name in names}
        self.wave, self.state, self.why, self.now = 0, RolloutState.RUNNING, "", 0

    def look(self, after_s: float = 1.0) -> RolloutStep:
        self.now += int(after_s * SECOND)
        step = plan_step(self.wave, self.pace, list(self.known.values()), self.seen, 5.0, self.now)
        sent = [each._replace(phase=MemberPhase.SENT, since=self.now, version=7) for each in step.send]
        self.known.update({each.gateway: each for each in (*step.members, *sent)})
        self.seen.update({each.gateway: self.seen[each.gateway]._replace(wanted=7) for each in sent})
        self.wave, self.state, self.why = step.wave, step.state, step.why
        return step

    def takes(self, *names: str) -> None:
        for name in names:
            self.seen[name] = self.seen[name]._replace(version=7)

    def phases(self) -> dict[str, str]:
        return {name: each.phase.value for name, each in self.known.items()}


def named(count: int) -> list[str]:
    return [f"g{number}" for number in range(count)]


def sent(step: RolloutStep) -> list[str]:
    return [each.gateway for each in step.send]


class TestWaves:
    @pytest.mark.parametrize(
        ("text", "total", "sizes"),
        [
            ("1,10%,100%", 50, [1, 4, 45]),
            ("1,10%,100%", 5, [1, 4]),
            ("2", 5, [2, 3]),
            ("100%", 3, [3]),
            ("1, 50% ,100%", 1, [1]),
            ("10%,5%", 100, [10, 90]),
        ],
    )
    def test_wave_sizes_are_computed(self, text: str, total: int, sizes: list[int]) -> None:
        assert [len(each.gateways) for each in parse_waves(text, named(total), {})] == sizes

    @pytest.mark.parametrize("text", ["", "0", "ten", "101%", "1;2", "-1"])
    def test_invalid_waves_raise(self, text: str) -> None:
        with pytest.raises(WavesError, match="is not a wave"):
            parse_waves(text, named(10), {})

    @given(st.lists(st.integers(1, 100)), st.integers(1, 500))
    def test_every_gateway_is_in_one_wave(self, shares: list[int], total: int) -> None:
        found = parse_waves(",".join(f"{share}%" for share in shares) or "100%", named(total), {})
        assert [name for each in found for name in each.gateways] == named(total)
        assert all(each.gateways for each in found)

    def test_labels_are_assigned_before_shares(self) -> None:
        labels = {name: {"ring": "canary", "site": "b" if name == "g8" else "a"} for name in ("g3", "g8")}
        labels |= {name: {"ring": "early"} for name in ("g0", "g1", "g2")}
        found = parse_waves("site=b+ring=canary, ring=canary ,30%,ring=early", named(10), labels)
        assert [(each.words, each.gateways) for each in found] == [
            ("site=b+ring=canary", ["g8"]),
            ("ring=canary", ["g3"]),
            ("30%", ["g0"]),
            ("ring=early", ["g1", "g2"]),
            ("", ["g4", "g5", "g6", "g7", "g9"]),
        ]

    def test_label_without_remaining_gateways_is_refused(self) -> None:
        with pytest.raises(WavesError, match='"ring=canary"'):
            parse_waves("50%,ring=canary,100%", named(4), {"g0": {"ring": "canary"}})


class TestLook:
    def test_next_wave_waits_for_the_soak(self) -> None:
        fleet = Fleet("abc", [1, 2])
        assert sent(fleet.look()) == ["a"]
        assert sent(fleet.look()) == []
        fleet.takes("a")
        fleet.look()
        assert fleet.phases() == {"a": "confirmed", "b": "waiting", "c": "waiting"}
        assert sent(fleet.look(9.0)) == []
        assert sent(fleet.look(2.0)) == ["b", "c"]
        fleet.takes("b", "c")
        fleet.look()
        fleet.look(11.0)
        assert (fleet.state, set(fleet.phases().values())) == (RolloutState.DONE, {"done"})

    def test_gateway_that_changes_its_system_is_awaited(self) -> None:
        fleet = Fleet("ab", [1, 1])
        fleet.look()
        fleet.seen["a"] = fleet.seen["a"]._replace(updating=True)
        for _ in range(5):
            assert sent(fleet.look(PACE.away_s)) == []
        assert (fleet.state, fleet.phases()["a"]) == (RolloutState.RUNNING, "sent")
        fleet.seen["a"] = fleet.seen["a"]._replace(updating=False)
        fleet.look()
        assert (fleet.state, fleet.phases()["a"]) == (RolloutState.HALTED, "failed"), "it says nothing any more"

    def test_failure_halts_the_rollout(self) -> None:
        fleet = Fleet("ab", [1, 1])
        fleet.look()
        fleet.seen["a"] = ObservedGateway(connected=True, wanted=7, version=0, failed=7, why="rolled-back: no hub")
        fleet.look()
        assert fleet.state is RolloutState.HALTED
        assert fleet.why == "gateway a: rolled-back: no hub"
        assert fleet.phases() == {"a": "failed", "b": "waiting"}

    def test_tolerated_failures_do_not_halt(self) -> None:
        fleet = Fleet("abc", [2, 1], PACE._replace(failures_max=1))
        fleet.look()
        fleet.seen["a"] = ObservedGateway(connected=True, wanted=7, version=0, failed=7, why="refused")
        fleet.takes("b")
        fleet.look()
        assert sent(fleet.look(11.0)) == ["c"]

    def test_absent_gateway_is_not_awaited_and_follows_later(self) -> None:
        fleet = Fleet("abc", [2, 1])
        fleet.seen["a"] = fleet.seen["a"]._replace(connected=False)
        fleet.look()
        fleet.takes("b")
        fleet.look()
        assert sent(fleet.look(50.0)) == []
        assert sent(fleet.look(51.0)) == ["c"]
        assert fleet.phases() == {"a": "away", "b": "done", "c": "sent"}
        fleet.seen["a"] = ObservedGateway(connected=True, wanted=7, version=0, failed=7, why="refused")
        fleet.look()
        assert fleet.state is RolloutState.HALTED

    def test_wave_without_connected_gateways_halts(self) -> None:
        fleet = Fleet("ab", [1, 1])
        fleet.seen["a"] = fleet.seen["a"]._replace(connected=False)
        fleet.look()
        fleet.look(101.0)
        assert (fleet.state, fleet.why) == (
            RolloutState.HALTED,
            "no gateway of wave 1 accepted the version: 1 away",
        )

    def test_gateway_that_does_not_return_has_failed(self) -> None:
        fleet = Fleet("ab", [1, 1])
        fleet.look()
        fleet.takes("a")
        fleet.look()
        fleet.seen["a"] = fleet.seen["a"]._replace(connected=False)
        fleet.look(60.0)
        assert fleet.state is RolloutState.RUNNING
        fleet.look(51.0)
        assert fleet.state is RolloutState.HALTED
        assert "did not come back" in fleet.why

    def test_connected_gateway_without_a_report_has_failed(self) -> None:
        fleet = Fleet("ab", [1, 1])
        fleet.look()
        fleet.look(101.0)
        assert fleet.state is RolloutState.HALTED
        assert "has not reported on the version" in fleet.why

    def test_newer_version_replaces_the_rollout(self) -> None:
        fleet = Fleet("ab", [1, 1])
        fleet.look()
        fleet.seen["a"] = fleet.seen["a"]._replace(wanted=8)
        assert sent(fleet.look()) == ["b"]
        assert fleet.phases() == {"a": "superseded", "b": "sent"}

    def test_rollout_continues_without_failed_gateways(self) -> None:
        fleet = Fleet("abc", [2, 1])
        fleet.look()
        fleet.takes("b")
        fleet.seen["a"] = fleet.seen["a"]._replace(failed=7, why="refused")
        fleet.look()
        assert fleet.state is RolloutState.HALTED
        fleet.known.update({each.gateway: each for each in resume_members(list(fleet.known.values()), fleet.now)})
        assert sent(fleet.look(11.0)) == ["c"]
        assert fleet.phases() == {"a": "left-out", "b": "done", "c": "sent"}

    @given(st.data())
    def test_wave_begins_when_the_previous_one_is_settled(self, data: st.DataObject) -> None:
        fleet = Fleet("abcdef", [1, 2, 3], PACE._replace(failures_max=2))
        for _ in range(30):
            name = data.draw(st.sampled_from("abcdef"))
            what = data.draw(st.sampled_from(["takes", "fails", "goes", "comes"]))
            before = fleet.seen[name]
            if before.wanted:
                changes = {"takes": {"version": 7}, "fails": {"failed": 7}}.get(what, {})
                fleet.seen[name] = before._replace(**changes, connected=what != "goes")
            step = fleet.look(data.draw(st.sampled_from([1.0, 11.0, 101.0])))
            if fleet.state is not RolloutState.RUNNING:
                return
            waiting = {MemberPhase.WAITING, MemberPhase.CONFIRMED}
            if step.send:
                wave = step.send[0].wave
                assert all(each.phase not in waiting for each in fleet.known.values() if each.wave < wave)
            assert [each.phase for each in fleet.known.values()].count(MemberPhase.FAILED) <= 2


def test_member_without_a_version_is_awaited() -> None:
    member = RolloutMember("a", 0, MemberPhase.SENT, 0)
    step = plan_step(0, PACE, [member], {"a": ObservedGateway(connected=True, wanted=0, version=0)}, 5.0, 500 * SECOND)
    assert step.members == []
