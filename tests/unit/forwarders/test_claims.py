"""Tokens at the `$cbs` node of a peer: sent once, renewed in time, and tried again after a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bridge import plain
from bridge import sections as s
from bridge.amqp_connection import AmqpConnection, LinkDown
from bridge.engine import Attached, Condition, DeliveryState, Engine, Link, PeerOpened, Transfers
from bridge.flow import Outcomes
from bridge.forwarders.claims import ANSWER_TIMEOUT_S, RETRY_S, SharedAccess
from bridge.forwarders.conditions import BUSY_S, is_temporary, wait_s
from bridge.forwarders.outbox import ForwarderOutbox
from bridge.forwarders.receivers import Receivers
from bridge.forwarders.senders import Senders
from bridge.forwarders.shared_access import Policy, token
from bridge.peer_links import PeerLinks
from tests.support.azure import KEY, POLICY, signed_until
from tests.support.machines import take_all

LIFETIME_S = 600.0
STARTED_AT_S = 1_800_000_000.0


class Pair:
    """A connection of the gateway, and a peer that answers each token as configured."""

    def __init__(self, *, refuses: bool = False, credit: int = 1) -> None:
        """Start with a peer without `$cbs` (`refuses`), or with this `credit` for tokens."""
        self.now = 0.0
        self.status: int | None = 202
        """Status of the answers; None: no answer."""
        self.put: list[tuple[str, int]] = []
        """Resource of each received token, and its end in seconds after the start; -1: it is not signed."""
        self.told: list[Any] = []
        self._refuses = refuses
        self._credit = credit
        self._answers: Link | None = None
        self._peer = Engine(container_id="peer", server=True, idle_timeout_s=0)
        engine = Engine(container_id="gw1", server=False, idle_timeout_s=0)
        policy = Policy(POLICY, KEY)
        self.claims = SharedAccess("ns.example", policy, LIFETIME_S, lambda: STARTED_AT_S + self.now)
        outbox = ForwarderOutbox("gw1", Outcomes(1, 2), epoch_of=lambda _address, _sequence: "e", now_ns=lambda: 0)
        self.link = AmqpConnection(
            engine, PeerLinks(Senders(outbox, self.claims), Receivers((), self.claims), self.claims)
        )
        self.carry()

    def carry(self) -> None:
        """Carry all bytes both ways."""
        said = True
        while said:
            out, back = self.link.data_to_send(), self._peer.data_to_send()
            said = bool(out or back)
            for event in take_all(self._peer, out, self.now) if out else ():
                self._heard(event)
            self.told += take_all(self.link, back, self.now) if back else ()

    def granted(self, address: str) -> bool:
        """Return the result once everything is answered."""
        self.claims.authorize(address)
        self.carry()
        return self.claims.authorize(address)

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.link.handle_timeout(self.now)
        self.carry()

    def _heard(self, event: object) -> None:
        if isinstance(event, PeerOpened):
            self._peer.open()
        elif isinstance(event, Attached) and self._refuses:
            self._peer.refuse(event.link, Condition("amqp:not-found", "no such node"))
        elif isinstance(event, Attached):
            self._peer.accept(event.link)
            if event.link.is_sender:
                self._answers = event.link
            else:
                self._peer.grant(event.link, self._credit)
        elif isinstance(event, Transfers):
            self._peer.settle(event.link, event.deliveries, DeliveryState.ACCEPTED)
            self._peer.grant(event.link, 1)
            for message in event.messages:
                self._answer(message)

    def _answer(self, message: bytes) -> None:
        wanted = (s.PROPERTIES, s.APPLICATION_PROPERTIES, s.VALUE)
        properties, said, value = (content for _, content in plain.contents(message, wanted))
        ends_at_s = signed_until(value, said["name"])
        self.put.append((said["name"], -1 if ends_at_s is None else int(ends_at_s - STARTED_AT_S)))
        if self.status is not None and self._answers is not None:
            answer = plain.section(s.PROPERTIES, [None, None, None, None, None, properties[0]])
            values: Mapping[str, object] = {"status-code": self.status, "status-description": "as told"}
            answer += plain.section(s.APPLICATION_PROPERTIES, values)
            self._peer.send(self._answers, len(self.put), answer, settled=True)


def test_each_address_gets_its_token_once_and_a_new_one_before_expiry() -> None:
    pair = Pair()
    assert pair.granted("readings")
    assert pair.granted("/alarms")
    assert pair.granted("readings")
    assert pair.put == [("sb://ns.example/readings", 600), ("sb://ns.example/alarms", 600)]
    pair.later(LIFETIME_S / 2)
    assert len(pair.put) == 2
    pair.later(LIFETIME_S / 4)
    assert pair.put[2:] == [("sb://ns.example/readings", 1050), ("sb://ns.example/alarms", 1050)]
    assert pair.granted("readings")


def test_refused_token_is_retried_and_an_existing_right_remains() -> None:
    pair = Pair()
    pair.status = 401
    assert not pair.granted("readings")
    assert not pair.granted("readings")
    assert len(pair.put) == 1
    pair.status = 202
    pair.later(RETRY_S)
    assert pair.granted("readings")
    pair.status = 500
    pair.later(LIFETIME_S * 0.75)
    assert pair.granted("readings"), "until the peer ends its links"
    assert len(pair.put) == 3


def test_no_answer_gives_no_right() -> None:
    pair = Pair()
    pair.status = None
    assert not pair.granted("readings")
    assert not pair.granted("readings")
    assert len(pair.put) == 1


def test_silent_peer_is_disconnected() -> None:
    pair = Pair()
    pair.later(ANSWER_TIMEOUT_S * 2)
    assert pair.granted("readings"), "nothing was asked: there is nothing to answer"
    pair.status = None
    assert not pair.granted("alarms")
    pair.later(ANSWER_TIMEOUT_S)
    pair.later(ANSWER_TIMEOUT_S - 1)
    assert not any(isinstance(each, LinkDown) for each in pair.told)
    pair.later(1)
    down = pair.told[-1]
    assert isinstance(down, LinkDown)
    assert down.reason == "the peer did not answer a token request ($cbs) within 30 s"


def test_peer_without_credit_for_tokens_is_disconnected() -> None:
    pair = Pair(credit=0)
    assert not pair.granted("readings")
    pair.later(ANSWER_TIMEOUT_S)
    assert pair.claims.deadline == ANSWER_TIMEOUT_S * 2
    pair.later(ANSWER_TIMEOUT_S)
    assert isinstance(pair.told[-1], LinkDown)
    assert pair.put == []


def test_peer_that_keeps_refusing_is_not_silent() -> None:
    pair = Pair()
    pair.status = 401
    assert not pair.granted("readings")
    for _ in range(20):
        pair.later(RETRY_S)
    assert not any(isinstance(each, LinkDown) for each in pair.told)
    assert len(pair.put) == 21


def test_peer_without_support_for_tokens_ends_the_attempt() -> None:
    down = Pair(refuses=True).told[-1]
    assert isinstance(down, LinkDown)
    assert down.reason == "the peer detached the link for tokens ($cbs): amqp:not-found: no such node"


@pytest.mark.parametrize("policy", [Policy("Other", KEY), Policy(POLICY, "other key")])
def test_signature_of_another_policy_or_key_is_invalid(policy: Policy) -> None:
    assert signed_until(token(Policy(POLICY, KEY), "sb://ns/a b", 1), "sb://ns/a b") == 1
    assert signed_until(token(policy, "sb://ns/a", 1), "sb://ns/a") is None
    assert policy.key not in repr(policy)


def test_errors_about_the_peer_are_not_errors_of_the_message() -> None:
    assert is_temporary(Condition("com.microsoft:server-busy"))
    assert wait_s(Condition("com.microsoft:server-busy")) == BUSY_S
    assert is_temporary(Condition("amqp:unauthorized-access"))
    assert not is_temporary(Condition("amqp:decode-error"))
    assert not is_temporary(None)
    assert wait_s(None) == wait_s(Condition("com.microsoft:unheard-of")) == 0
