"""Commands in the registry, on SQLite and on PostgreSQL: idempotency keys, and cancelling."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from bridge.command import OnlineReason
from cloud.hub.commands.service import Draft
from cloud.hub.groups import Presence
from cloud.hub.limits import COMMAND_KEYS_KEPT_S, ONLINE_ANSWER_S
from cloud.hub.registry.commands import (
    CancelTooLate,
    CommandFilter,
    CommandNews,
    CommandRecord,
    CommandRefusal,
    CommandRefused,
    Commands,
    CommandState,
)
from cloud.hub.registry.enrolments import Enrolments
from tests.contract.registry.conftest import HERE, Place

SECOND = 1_000_000
DRAFT = Draft("acme", "hall", "pump7", "on", b"{}", None, 60.0, sent_by="ann@acme", reply_to="command-reply/1")


@pytest.fixture
def known(place: Place) -> Iterator[Commands]:
    place.open().close()
    opened = Commands(place.url)
    yield opened
    opened.close()


def send(known: Commands, draft: Draft, key: str | None, now_us: int, tenant_max: int = 100) -> CommandRecord:
    return known.add(draft.record(now_us), gateway_max=100, tenant_max=tenant_max, known=True, key=key)


class TestKeys:
    def test_repeated_command_is_the_existing_one(self, known: Commands) -> None:
        first = send(known, DRAFT, "k", 1)
        known.take(first.key, (), 9, 2)
        again = send(known, DRAFT, "k", 3, tenant_max=1)
        assert (again.id, again.number, again.state) == (first.id, first.number, "sent"), "as it is by then"
        assert len(known.page(CommandFilter(), 10)) == 1
        assert send(known, DRAFT, None, 3).id != first.id

    def test_repeated_command_is_reported_to_the_newer_listener(self, known: Commands) -> None:
        first = send(known, DRAFT, "k", 1)
        assert send(known, DRAFT._replace(reply_to="command-reply/2"), "k", 2).id == first.id
        found = known.get(first.id)
        assert found is not None
        assert found.reply_to == "command-reply/2"

    @pytest.mark.parametrize(
        "other",
        [
            DRAFT._replace(payload=b"[]"),
            DRAFT._replace(gateway="yard"),
            DRAFT._replace(device="pump8"),
            DRAFT._replace(name="off"),
            DRAFT._replace(content_type="application/json"),
            DRAFT._replace(wants_response=True),
            DRAFT._replace(online=True),
        ],
    )
    def test_other_command_needs_another_key(self, known: Commands, other: Draft) -> None:
        send(known, DRAFT, "k", 1)
        with pytest.raises(CommandRefused) as refused:
            send(known, other, "k", 2)
        assert refused.value.why is CommandRefusal.OTHER_CONTENT

    def test_key_belongs_to_its_sender(self, known: Commands) -> None:
        found = {send(known, DRAFT._replace(sent_by=by), "k", 1).id for by in ("ann@acme", "bob@acme", "")}
        assert len(found) == 3

    def test_refused_command_keeps_no_key(self, known: Commands) -> None:
        with pytest.raises(CommandRefused):
            send(known, DRAFT, "k", 1, tenant_max=0)
        assert send(known, DRAFT, "k", 2).created_at == 2

    @pytest.mark.parametrize(("ttl_s", "kept_s"), [(60.0, COMMAND_KEYS_KEPT_S), (9e5, 9e5)])
    def test_key_is_forgotten(self, known: Commands, ttl_s: float, kept_s: float) -> None:
        end = int(kept_s * SECOND)
        first = send(known, DRAFT._replace(ttl_s=ttl_s), "k", 0)
        known.forget(0, 100, end - 1)
        assert send(known, DRAFT, "k", end - 1).id == first.id
        known.forget(0, 100, end)
        assert send(known, DRAFT._replace(payload=b"other"), "k", end).id != first.id

    def test_expired_key_that_is_not_yet_deleted_does_not_count(self, known: Commands) -> None:
        first = send(known, DRAFT, "k", 0)
        assert send(known, DRAFT, "k", int(COMMAND_KEYS_KEPT_S * SECOND)).id != first.id


class TestForgottenGateway:
    def test_commands_of_a_forgotten_gateway_are_not_sent_and_are_rejected(self, known: Commands, place: Place) -> None:
        """Such commands reach neither the gateway nor the next one with its name; the sender gets a rejection."""
        ids = {
            state: send(known, DRAFT, None, 1).id for state in ("sent", "queued", "delivered", "waiting", "cancelling")
        }
        known.take(("acme", "hall"), [ids[state] for state in ("waiting", "cancelling")], 9, 2)
        for state in ("queued", "delivered"):
            known.keep([CommandNews(ids[state], "acme", "hall", DRAFT.device, 3, CommandState(state))])
        known.cancel(ids["cancelling"], "ann", 3)
        other = send(known, DRAFT._replace(gateway="yard"), None, 3)
        there = Presence("-", False, 4, connects=1)
        place.open().directory.presence({("acme", "hall"): there, ("acme", "yard"): there})
        with contextlib.closing(Enrolments(place.url)) as enrolments:
            enrolments.forget("acme", "hall", 5)
        states = {each.id: each.state for each in known.page(CommandFilter(), 9)}
        assert [states[each] for each in ids.values()] == [
            "rejecting",
            "rejecting",
            "delivered",
            "rejecting",
            "cancelling",
        ]
        assert states[other.id] == "waiting"
        assert known.take(("acme", "hall"), (), 9, 6) == []
        late = CommandNews(ids["sent"], "acme", "hall", DRAFT.device, 6, CommandState.QUEUED)
        assert known.keep([late]) == []
        reasons = {each.id: each.reason for each in known.over(7, 9)}
        assert reasons[ids["waiting"]] == "gateway hall was forgotten"
        assert reasons[ids["queued"]] == "gateway hall was forgotten; it may have the command"
        with pytest.raises(CancelTooLate):
            known.cancel(ids["sent"], "ann", 8)
        [over] = known.keep([late._replace(state=CommandState.REJECTED, reason="gone")])
        assert (over.state, known.keep([late._replace(state=CommandState.DELIVERED)])) == ("rejected", [])


class TestCancelling:
    def test_waiting_command_is_not_sent(self, known: Commands) -> None:
        sent = send(known, DRAFT, None, 1)
        for _ in range(2):
            cancelled = known.cancel(sent.id, "ann", 2)
            assert cancelled is not None
            assert (cancelled.state, cancelled.reason, cancelled.changed_at) == ("cancelling", "cancelled by ann", 2)
        assert known.take(sent.key, (), 9, 3) == []
        [over] = known.over(3, 9)
        assert over.id == sent.id
        [final] = known.keep([CommandNews(sent.id, *sent.key, sent.device, 4, CommandState.CANCELLED, over.reason)])
        assert (final.state, final.reason) == ("cancelled", "cancelled by ann")
        assert known.over(5, 9) == []
        assert known.cancel(sent.id, "bob", 6) == final

    @pytest.mark.parametrize("state", [CommandState.QUEUED, CommandState.DELIVERED, CommandState.EXPIRED])
    def test_sent_command_cannot_be_cancelled(self, known: Commands, state: CommandState) -> None:
        sent = send(known, DRAFT, None, 1)
        known.take(sent.key, (), 9, 2)
        with pytest.raises(CancelTooLate) as late:
            known.cancel(sent.id, "ann", 3)
        assert late.value.command.state == CommandState.SENT.value
        known.keep([CommandNews(sent.id, *sent.key, sent.device, 4, state)])
        with pytest.raises(CancelTooLate) as late:
            known.cancel(sent.id, "ann", 5)
        assert late.value.command.state == state.value

    def test_unknown_command_cannot_be_cancelled(self, known: Commands) -> None:
        assert known.cancel("nothing", "ann", 1) is None

    def test_command_is_open_until_its_request_is_answered(self, known: Commands) -> None:
        sent = send(known, DRAFT, None, 1, tenant_max=1)
        known.cancel(sent.id, "", 2)
        with pytest.raises(CommandRefused):
            send(known, DRAFT, None, 3, tenant_max=1)
        known.keep([CommandNews(sent.id, *sent.key, sent.device, 4, CommandState.CANCELLED)])
        assert send(known, DRAFT, None, 5, tenant_max=1).state == "waiting"


ONLINE = DRAFT._replace(ttl_s=10.0, online=True)
END_US = 10 * SECOND
UNKNOWN_US = END_US + int(ONLINE_ANSWER_S * SECOND)
GATEWAY = ("acme", "hall")


def add(known: Commands, draft: Draft = ONLINE, *, connected: bool = True) -> CommandRecord:
    return known.add(draft.record(0), gateway_max=100, tenant_max=100, known=True, connected=connected)


def outcome(known: Commands, sent: CommandRecord) -> tuple[str, str | None]:
    found = known.get(sent.id)
    assert found is not None
    return found.state, found.reason_code


def receipt(sent: CommandRecord, state: CommandState, code: OnlineReason | None = None) -> CommandNews:
    return CommandNews(sent.id, *GATEWAY, sent.device, UNKNOWN_US + 1, state, "", code=code)


class TestOnlineCommands:
    def test_command_is_refused_unless_its_gateway_is_connected_to_a_hub(self, known: Commands, place: Place) -> None:
        directory = place.open().directory
        for connected in (False, True):
            directory.presence({GATEWAY: Presence("-", connected, 1, connects=1)})
            if connected:
                assert add(known, connected=False).state == "waiting"
                continue
            with pytest.raises(CommandRefused) as refused:
                add(known, connected=False)
            assert refused.value.why is CommandRefusal.NOT_CONNECTED
            assert add(known, DRAFT, connected=False).state == "waiting"
        with pytest.raises(CommandRefused):  # the hub that wrote this knows that it is over
            known.add(ONLINE.record(0), gateway_max=9, tenant_max=9, known=True, hub=HERE)

    def test_command_is_taken_once_and_in_its_time(self, known: Commands) -> None:
        first = add(known)
        assert [each.id for each in known.take(GATEWAY, (), 9, 0)] == [first.id]
        assert known.take(GATEWAY, (), 9, 1) == [], "another hub, or a new connection"
        add(known)
        assert known.take(GATEWAY, (), 9, END_US) == []

    def test_command_that_waits_for_its_device_is_taken_again(self, known: Commands) -> None:
        stored = add(known, DRAFT)
        for now_us in (0, END_US + 1):
            assert [each.id for each in known.take(GATEWAY, (), 9, now_us)] == [stored.id]

    @pytest.mark.parametrize("state", [CommandState.SENT, CommandState.QUEUED])
    def test_command_without_an_outcome_is_found_when_its_time_is_over(
        self, known: Commands, state: CommandState
    ) -> None:
        online, stored = add(known), add(known, DRAFT)
        known.take(GATEWAY, (), 9, 0)
        known.keep([receipt(each, state) for each in (online, stored)])
        assert known.over(UNKNOWN_US - 1, 9) == []
        assert [each.id for each in known.over(UNKNOWN_US, 9)] == [online.id]
        assert known.over(UNKNOWN_US, 0) == []

    def test_later_receipt_replaces_an_unknown_outcome(self, known: Commands) -> None:
        sent = add(known)
        known.take(GATEWAY, (), 9, 0)
        unknown = receipt(sent, CommandState.EXPIRED, OnlineReason.OUTCOME_UNKNOWN)
        known.keep([unknown])
        for late in (unknown, receipt(sent, CommandState.QUEUED)):
            assert known.keep([late]) == []
            assert outcome(known, sent) == ("expired", "outcome-unknown")
        known.keep([receipt(sent, CommandState.DELIVERED)])
        assert outcome(known, sent) == ("delivered", None)
        assert known.keep([unknown, receipt(sent, CommandState.REJECTED)]) == [], "that is final"
