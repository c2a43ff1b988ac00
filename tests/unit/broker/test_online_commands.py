"""Online commands at a gateway: a device takes one now, or it is rejected with a reason code and never delivered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bridge.command import ONLINE_COMMANDS, HubCommand, OnlineReason, message, queued, read, split_refusal
from bridge.command import is_online as is_online_message
from bridge.forwarders.inbox import DescribedInbox, Incoming
from bridge.forwarders.outcome import ForwardOutcome as Answer
from bridge.message import Run
from bridge.plain import parse
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.interfaces import DeliveryOutcome
from edge.broker.store.errors import StoreFull
from tests.unit.broker.command_site import Gateway

TTL_MS = 10_000
Prepare = Callable[["Site"], None]


class Site(Gateway):
    """Gateway that gets online commands."""

    def online(self, identifier: str = "a1", *, ttl_ms: int = TTL_MS, until_s: float | None = None) -> None:
        until_s = self.now + ttl_ms / 1_000 if until_s is None else until_s
        self.arrive(message(made(identifier, ttl_ms, int(until_s * 1_000))))

    @property
    def refusals(self) -> list[OnlineReason | None]:
        """Reason codes of rejected commands."""
        return [split_refusal(why)[0] for _, outcome, why in self.answers if outcome is Answer.REJECTED]

    def require_nothing_later(self) -> None:
        """Check that a device that comes later gets nothing, and that no receipt follows."""
        late = self.consumer("command/pump7", "late")
        assert late.got == []
        assert self.told == []


def made(identifier: str = "a1", ttl_ms: int = TTL_MS, until_ms: int | None = 1) -> HubCommand:
    return HubCommand(
        id=identifier,
        device="pump7",
        name="on",
        payload=b"x",
        content_type=None,
        ttl_ms=ttl_ms,
        response=False,
        online_until_ms=until_ms,
    )


def test_end_of_an_online_command_travels() -> None:
    assert read(message(made(until_ms=17))).online_until_ms == 17
    assert read(message(made(until_ms=None))).online_until_ms is None
    for until_ms, online in ((17, True), (None, False)):
        assert is_online_message(queued(made(until_ms=until_ms), "command/pump7", "r").bodies[0]) is online
    assert not is_online_message(b"\xff")


@pytest.mark.parametrize(
    ("outcome", "receipt"), [(DeliveryOutcome.ACCEPTED, "delivered"), (DeliveryOutcome.REJECTED, "rejected")]
)
def test_connected_device_takes_it(outcome: DeliveryOutcome, receipt: str) -> None:
    site = Site()
    device = site.consumer("command/pump7")
    site.online()
    assert site.answers == [(1, Answer.ACCEPTED, "")]
    device.answer(outcome)
    assert site.told == [("a1", receipt)]


def test_subscription_to_many_devices_takes_the_first_command_of_a_device() -> None:
    site = Site()
    device = site.consumer("command/#")
    site.online()
    assert len(device.got) == 1


class OnlyOff:
    """Selection that wants no command called `on`."""

    text = "off"

    def wanted(self, run: Run) -> list[bool]:
        return [b"\xa1\x03off" in body for body in run.bodies]


def select_others(site: Site) -> None:
    consumer = site.consumer("command/pump7")
    consumer.selection = OnlyOff()


def leave(site: Site) -> None:
    consumer = site.consumer("command/pump7")
    joined = consumer.joined
    assert joined is not None
    site.router.subscriptions.unsubscribe(consumer, joined, forget=False)


def stay_away(_site: Site) -> None:
    """Connect nothing."""


def take_no_more(site: Site) -> None:
    site.consumer("command/pump7", credit=0)


def take_another_first(site: Site) -> None:
    site.consumer("command/pump7", credit=1)
    site.online("b1")


def fill_up(site: Site) -> None:
    site.consumer("command/pump7")
    site.store.medium.failure = StoreFull("the medium is full")


def lengthen(site: Site) -> None:
    site.consumer("command/pump7")
    policies = {**site.policies, "command/#": AddressPolicy(ttl_min_s=60.0)}
    site.router.reconfigure(site.table, policies)


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (stay_away, OnlineReason.DEVICE_NOT_CONNECTED),
        (leave, OnlineReason.DEVICE_NOT_CONNECTED),
        (select_others, OnlineReason.DEVICE_NOT_CONNECTED),
        (take_no_more, OnlineReason.DEVICE_BUSY),
        (take_another_first, OnlineReason.DEVICE_BUSY),
        (fill_up, OnlineReason.GATEWAY_BUSY),
        (lengthen, OnlineReason.ADDRESS_UNSUITABLE),
    ],
)
def test_command_that_its_device_cannot_take_now_is_rejected_and_forgotten(
    prepare: Prepare, reason: OnlineReason
) -> None:
    site = Site()
    prepare(site)
    site.online()
    site.store.medium.failure = None
    site.settle_down()
    assert site.refusals == [reason]
    site.require_nothing_later()


def test_second_command_of_one_turn_needs_credit_too() -> None:
    site = Site()
    device = site.consumer("command/pump7", credit=1)
    arrivals = []
    for number in range(2):
        said = parse(message(made(f"a{number}", TTL_MS, int(site.now * 1_000) + TTL_MS)))
        arrivals.append(Incoming(number, said.destinations, said.name, said.hops, said.run))
    site.inbox.receive(arrivals)
    site.settle_down()
    assert site.refusals == [OnlineReason.DEVICE_BUSY]
    assert len(device.got) == 1


def test_command_behind_one_that_waits_for_room_is_rejected() -> None:
    """A gateway without room would publish it later than its sender wants."""
    site = Site()
    site.consumer("command/pump7")
    site.store.medium.failure = StoreFull("the medium is full")
    site.command("stored")
    site.online()
    assert site.refusals == [OnlineReason.GATEWAY_BUSY]


def test_command_that_is_given_back_is_not_delivered_after_its_time() -> None:
    site = Site()
    site.good = True
    first = site.consumer("command/pump7")
    site.online()
    assert len(first.got) == 1
    assert first.joined is not None
    site.router.subscriptions.unsubscribe(first, first.joined, forget=False)
    second = site.consumer("command/pump7", "second")
    assert len(second.got) == 1, "the device is back in time"
    assert second.joined is not None
    site.router.subscriptions.unsubscribe(second, second.joined, forget=False)
    site.settle_down(wait_s=TTL_MS / 1_000)
    assert site.consumer("command/pump7", "late").got == []
    assert site.told == [("a1", "expired")]


def test_command_is_not_delivered_when_its_age_is_unknown() -> None:
    """Another message would be delivered: an online command must never be late."""
    site = Site()
    site.good = False
    first = site.consumer("command/pump7")
    site.online()
    assert first.joined is not None
    site.router.subscriptions.unsubscribe(first, first.joined, forget=False)
    site.good = True  # the clock was set, so the age is unknown
    assert site.consumer("command/pump7", "second").got == []
    assert site.told == [("a1", "expired")]


def test_command_of_an_earlier_process_is_not_delivered_without_a_good_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that starts with the same wrong time at every boot takes the command for a new one."""
    site = Site()
    site.good = False
    monkeypatch.setattr("bridge.command.PROCESS", "earlier")
    device = site.consumer("command/pump7")
    site.online()
    assert device.got == []
    assert site.told == [("a1", "expired")]
    site.good = True
    site.online("a2")
    assert len(device.got) == 1, "a good clock shows its age"


@pytest.mark.parametrize("taken", [True, False])
def test_command_that_a_hub_of_an_older_version_sends_again_is_not_stored(taken: bool) -> None:
    """Such a hub does not know online commands, and repeats what it takes for unanswered."""
    site = Site()
    device = site.consumer("command/pump7", credit=int(taken))
    site.online()
    site.inbox.detached()
    site.inbox.attached(site._settle, lambda: None)
    site.command("a1")
    site.online("a1")
    assert [outcome for _, outcome, _ in site.answers[1:]] == [Answer.ACCEPTED] * 2
    assert len(device.got) == int(taken)
    device.credit = 9
    site.settle_down()
    assert len(device.got) == int(taken)


def test_command_that_the_device_took_before_it_left_is_not_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal would say that it was never here, and the hub would send it elsewhere."""
    site = Site()
    site.consumer("command/pump7")
    site.online()
    monkeypatch.setattr(site.inbox, "_knows", lambda _device: False)
    site.command("a1")
    site.command("a2")
    assert [outcome for _, outcome, _ in site.answers[-2:]] == [Answer.ACCEPTED, Answer.REJECTED]


def test_command_that_was_under_way_for_too_long_is_rejected() -> None:
    site = Site()
    site.good = True
    device = site.consumer("command/pump7")
    site.online(until_s=site.now)
    assert site.refusals == [OnlineReason.COMMAND_LATE]
    site.online("a2", until_s=site.now + 3)
    assert len(device.runs) == 1
    assert b"\x70\x00\x00\x0b\xb8" in device.runs[0].properties, "3 000 ms are left"
    site.good = False
    site.online("a3", until_s=site.now)
    assert len(device.runs) == 2, "the gateway does not know its clock: the time counts from now"


def test_answer_of_an_ended_connection_is_not_given_to_the_next_one() -> None:
    site = Site()
    site.consumer("command/pump7")
    said = parse(message(made("a1", TTL_MS, int(site.now * 1_000) + TTL_MS)))
    left: list[str] = []
    site.inbox.receive([Incoming(1, said.destinations, said.name, said.hops, said.run)])
    site.inbox.leave(lambda: left.append("left"))
    assert left == [], "the commit is under way"
    site.inbox.detached()
    site.inbox.attached(site._settle, lambda: None)
    site.settle_down()
    assert site.answers == []
    assert left == []
    site.inbox.receive([Incoming(2, said.destinations, said.name, said.hops, parse(message(made("a2"))).run)])
    site.inbox.leave(lambda: left.append("left"))
    site.settle_down()
    assert left == ["left"]
    assert [token for token, _, _ in site.answers] == [2]
    site.inbox.release()


def test_gateway_says_that_it_knows_online_commands() -> None:
    inbox = Site().inbox
    assert isinstance(inbox, DescribedInbox)
    assert ONLINE_COMMANDS in inbox.link_properties()
