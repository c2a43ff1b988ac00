"""Rules: the rights they grant and do not grant, and the bound of the cache of decisions."""

from __future__ import annotations

import logging

import pytest

from edge.broker.amqp.addressing import temporary_address
from edge.broker.limits import GRANT_ADDRESS_CHARACTERS_MAX, GRANT_VERDICTS_MAX
from edge.broker.model.authorization import AccessRule, Grant, Operation, substitute

SEND, RECV = frozenset({Operation.SEND}), frozenset({Operation.RECV})


def grant(*rules: tuple[str, frozenset[Operation]], user: str = "pump7", client: str = "c1") -> Grant:
    return Grant(user, client, [AccessRule((pattern,), operations) for pattern, operations in rules])


class TestSubstitution:
    @pytest.mark.parametrize(
        ("pattern", "user", "client", "meant"),
        [
            ("plant/%u/#", "pump7", "c", "plant/pump7/#"),
            ("%u/%c", "u", "c", "u/c"),
            ("%u/%u", "%c", "x", "%c/%c"),  # substituted text is not expanded again
            ("plain/+/#", "+", "#", "plain/+/#"),  # the names are not used
            ("a/%u/#", "+", "c", None),
            ("a/%c", "u", "#", None),
            ("a/%c/x", "u", "b/c", None),
            ("a/%c/x", "u", "", None),
            ("100%/%x", "u", "c", "100%/%x"),
        ],
    )
    def test_name_never_widens_a_filter(self, pattern: str, user: str, client: str, meant: str | None) -> None:
        assert substitute(pattern, user, client) == meant


class TestGrant:
    def test_nothing_is_allowed_without_a_rule(self) -> None:
        nothing = grant()
        assert not nothing.may_send("a")
        assert not nothing.may_receive("a")
        assert not any(nothing.may(operation, "a") for operation in Operation)

    def test_operations_are_separate(self) -> None:
        one = grant(("up/#", SEND), ("down/#", RECV))
        assert one.may_send("up/1")
        assert not one.may_receive("up/1")
        assert one.may_receive("down/1")
        assert not one.may_send("down/1")

    @pytest.mark.parametrize(
        ("pattern", "allowed"),
        [
            ("plant/#", True),
            ("plant", True),  # "#" covers the parent too
            ("plant/+/temp", True),
            ("$share/group/plant/+", True),
            ("$share/group/#", False),
            ("$share/plant", False),
            ("#", False),
            ("+/x", False),
            ("+", False),
            ("plants", False),
        ],
    )
    def test_filter_must_be_within_a_rule(self, pattern: str, allowed: bool) -> None:
        assert grant(("plant/#", RECV)).may_receive(pattern) is allowed

    def test_wildcards_do_not_match_dollar_names(self) -> None:
        everything = grant(("#", SEND | RECV))
        assert everything.may_receive("#")
        assert not everything.may_receive("$SYS/#")
        assert not everything.may_send("$SYS/x")
        assert grant(("$SYS/#", RECV)).may_receive("$SYS/broker")

    @pytest.mark.parametrize(
        ("rule", "allowed"),
        [("plant/%u/#", True), ("plant/#", True), ("#", True), ("plant/+/+", False), ("up/#", False)],
    )
    def test_one_rule_allows_all_names_of_a_prefix(self, rule: str, allowed: bool) -> None:
        assert grant((rule, SEND)).may_send_below("plant/pump7/") is allowed
        assert not grant((rule, SEND)).may_send_below("$SYS/")
        assert not grant((rule, RECV)).may_send_below("plant/pump7/")

    def test_client_with_a_temporary_reply_address_may_be_answered_there(self) -> None:
        none = grant()
        assert none.may_send(temporary_address())
        for name in ("temp/room1", "temp/" + "0" * 31, "temp/" + "0" * 32 + "/a", "temp/" + "g" * 32):
            assert not none.may_send(name)
        assert not none.may_receive("temp/#")
        assert not none.may_receive(temporary_address())

    def test_client_may_always_publish_its_own_state(self) -> None:
        none = grant()
        none.allow_own_topic("$SYS/broker/connection/dev/state")
        assert none.may_send("$SYS/broker/connection/dev/state")
        assert not none.may_send("$SYS/broker/connection/other/state")
        assert not none.may_receive("$SYS/broker/connection/dev/state")

    def test_decisions_are_cached_and_bounded(self) -> None:
        one = grant(("up/#", SEND))
        for i in range(GRANT_VERDICTS_MAX * 2 + 7):
            assert one.may_send(f"up/{i}") is True
            assert not one.may_receive(f"up/{i}")
            assert len(one.sends) <= GRANT_VERDICTS_MAX
            assert len(one.receives) <= GRANT_VERDICTS_MAX
        assert one.sends[f"up/{GRANT_VERDICTS_MAX * 2 + 6}"] is True

    def test_long_names_are_judged_every_time(self) -> None:
        one = grant(("up/#", SEND))
        name = "up/" + "x" * GRANT_ADDRESS_CHARACTERS_MAX
        assert one.may_send(name)
        assert not one.sends

    def test_denials_are_logged_once_a_connection(self, caplog: pytest.LogCaptureFixture) -> None:
        one = grant()
        with caplog.at_level(logging.INFO):
            for i in range(50):
                one.may_send(f"no/{i}")
        assert one.denied == 50
        assert [record.getMessage() for record in caplog.records] == ["user pump7 as c1: must not send to no/0"]
