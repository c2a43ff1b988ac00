"""A new system stays only after a time in the health of the old one, and every trial ends with a decision."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge.appliance.update.gate import GatewayCondition, UpdateGate, UpdateVerdict
from edge.appliance.update.limits import CHECK_INTERVAL_S, HEALTHY_S, TRIAL_S

WELL = GatewayCondition(frozenset(), connected=True)
ALONE = GatewayCondition(frozenset(), connected=False)
ILL = GatewayCondition(frozenset({"listener"}), connected=True)


def gate(*, errors: tuple[str, ...] = (), connected: bool = True) -> UpdateGate:
    return UpdateGate(0.0, errors=errors, connected=connected)


def test_system_is_kept_after_a_minute_of_health() -> None:
    one = gate()
    assert one.update(10.0, WELL) is UpdateVerdict.WAIT
    assert one.update(10.0 + HEALTHY_S - 1, None) is UpdateVerdict.WAIT
    assert "does not answer" in one.lacking
    assert one.update(100.0, WELL) is UpdateVerdict.WAIT
    assert one.update(100.0 + HEALTHY_S - 0.1, WELL) is UpdateVerdict.WAIT
    assert one.update(100.0 + HEALTHY_S, WELL) is UpdateVerdict.KEEP
    assert one.update(TRIAL_S + 1, None) is UpdateVerdict.KEEP


def test_earlier_problems_do_not_count() -> None:
    one = gate(errors=("listener",), connected=False)
    one.update(0.0, ILL._replace(connected=False))
    assert one.update(HEALTHY_S, ILL._replace(connected=False)) is UpdateVerdict.KEEP


def test_missing_uplink_rolls_back_with_its_reason() -> None:
    one = gate()
    assert one.update(TRIAL_S - 0.1, ALONE) is UpdateVerdict.WAIT
    assert one.update(TRIAL_S, ALONE) is UpdateVerdict.GO_BACK
    assert "hub" in one.lacking
    assert one.lacks_only_the_hub
    assert one.update(TRIAL_S + HEALTHY_S, WELL) is UpdateVerdict.GO_BACK


def test_recovery_at_the_deadline_is_too_late() -> None:
    one = gate()
    one.update(TRIAL_S - 1, WELL)
    assert one.update(TRIAL_S, WELL) is UpdateVerdict.GO_BACK
    assert "long enough" in one.lacking
    assert not one.lacks_only_the_hub


def test_other_problem_besides_the_uplink_rolls_back_for_it() -> None:
    one = gate()
    for seen in (None, ILL._replace(connected=False)):
        one.update(0.0, seen)
        assert not one.lacks_only_the_hub


looks = st.lists(st.sampled_from([WELL, ALONE, ILL, None]), max_size=400)


@given(looks, st.booleans())
def test_silence_rolls_back(seen: list[GatewayCondition | None], connected: bool) -> None:
    one, verdicts = gate(connected=connected), []
    for number, each in enumerate(seen):
        verdicts.append(one.update(number * CHECK_INTERVAL_S, each))
    decided = next((at for at, verdict in enumerate(verdicts) if verdict is not UpdateVerdict.WAIT), None)
    if decided is None:
        assert len(seen) * CHECK_INTERVAL_S <= TRIAL_S
        return
    assert set(verdicts[decided:]) == {verdicts[decided]}
    fine = {WELL} if connected else {WELL, ALONE}
    lately = seen[decided - int(HEALTHY_S / CHECK_INTERVAL_S) : decided + 1]
    if verdicts[decided] is UpdateVerdict.KEEP:
        assert set(lately) <= fine
        assert len(lately) > HEALTHY_S / CHECK_INTERVAL_S
        assert decided * CHECK_INTERVAL_S <= TRIAL_S
    else:
        assert decided * CHECK_INTERVAL_S >= TRIAL_S
