"""Enhanced authentication of a session (MQTT 5 section 4.12): its mechanisms and its errors."""

from __future__ import annotations

import pytest

from bridge.sasl import bearer, scram
from edge.broker.configuration import AuthenticationMode
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.credentials import CredentialSnapshot, CredentialUser, new_user, with_rules, with_secret
from edge.broker.security.limits import (
    FAILURES_PER_ADDRESS_MAX,
    FAILURES_PER_USER_MAX,
    FAILURES_PERIOD_S,
    SUCCESS_KEPT_S,
    SUCCESSES_KEPT_MAX,
    TOKEN_EXPIRY_CHECK_S,
)
from edge.broker.security.login_throttle import Failures
from edge.broker.security.proof import Decided, LoginVerdict, VerifiedIdentity
from tests.unit.mqtt.gated_sessions import GatedPeer, GatedSite

NOW = 1_000_000.0
RULE = AccessRule(("up/#",), frozenset({Operation.SEND, Operation.RECV}))


@pytest.fixture(scope="module")
def joe() -> CredentialUser:
    return with_secret(new_user("joe", [RULE]), "s3cret", at_s=NOW)


class Tokens:
    """Issuer; its tokens have the form ``user:expiry``."""

    def check(self, token: bytes, decided: Decided, source: str = "") -> None:
        user, _, expiry = token.decode().partition("-")
        if user == "bad":
            decided(LoginVerdict.REFUSED, None)
        else:
            decided(LoginVerdict.ACCEPTED, VerifiedIdentity(user, (RULE,) if user != "poor" else (), float(expiry)))


class Gated(GatedSite):
    """A site with real secrets, or tokens, and clocks that stand still."""

    def __init__(self, *users: CredentialUser, tokens: bool = False) -> None:
        super().__init__()
        self.now = 0.0
        self.utc_s = NOW
        self.gate = Authenticator(  # type: ignore[assignment]
            AuthenticationMode.EXTERNAL if tokens else AuthenticationMode.STANDARD,
            CredentialSnapshot({user.name: user for user in users}, b"k"),
            worker=lambda work, done: done(work()),
            clock=lambda: self.now,
            utc_s=lambda: self.utc_s,
        )
        if tokens:
            self.gate.accept_tokens(Tokens())

    def connect(self, method: str, data: bytes, **connect: object) -> GatedPeer:
        block = Properties(authentication_method=method, authentication_data=data)
        return GatedPeer(self, 5, properties=block, **connect)


def auth(data: bytes, method: str, reason: R = R.CONTINUE_AUTHENTICATION) -> packets.Auth:
    return packets.Auth(reason, Properties(authentication_method=method, authentication_data=data))


def scram_auth(data: bytes, reason: R = R.CONTINUE_AUTHENTICATION) -> packets.Auth:
    return auth(data, scram.MECHANISM, reason)


def opened(site: Gated) -> GatedPeer:
    client = scram.ScramClient("joe", "s3cret")
    peer = site.connect(scram.MECHANISM, client.first())
    (question,) = peer.sent()
    peer.send(scram_auth(client.answer(question.properties.authentication_data)))
    (connack,) = peer.sent()
    assert (type(connack), connack.reason) == (packets.ConnAck, R.SUCCESS)
    assert connack.properties.authentication_method == scram.MECHANISM
    client.check(connack.properties.authentication_data)
    return peer


class TestScram:
    def test_both_sides_prove_themselves(self, joe: CredentialUser) -> None:
        peer = opened(Gated(joe))
        peer.send(packets.Publish("up/1", b"x", 1, packet_id=1))
        peer.send(packets.Publish("no", b"x", 1, packet_id=2))
        assert {packet.packet_id: packet.reason.failed for packet in peer.sent()} == {1: False, 2: True}

    def test_client_may_authenticate_again(self, joe: CredentialUser) -> None:
        peer = opened(Gated(joe))
        client = scram.ScramClient("joe", "s3cret")
        peer.send(scram_auth(client.first(), R.RE_AUTHENTICATE))
        (question,) = peer.sent()
        assert (type(question), question.reason) == (packets.Auth, R.CONTINUE_AUTHENTICATION)
        peer.send(scram_auth(client.answer(question.properties.authentication_data)))
        (answer,) = peer.sent()
        assert (type(answer), answer.reason) == (packets.Auth, R.SUCCESS)
        client.check(answer.properties.authentication_data)
        assert not peer.connection.closed

    @pytest.mark.parametrize(("user", "password"), [("joe", "wrong"), ("jane", "s3cret")])
    def test_client_may_not_authenticate_again_as_another_user(
        self, joe: CredentialUser, user: str, password: str
    ) -> None:
        jane = with_secret(new_user("jane", [RULE]), "s3cret", at_s=NOW)
        peer = opened(Gated(joe, jane))
        client = scram.ScramClient(user, password)
        peer.send(scram_auth(client.first(), R.RE_AUTHENTICATE))
        (question,) = peer.sent()
        peer.send(scram_auth(client.answer(question.properties.authentication_data)))
        (answer,) = peer.sent()
        assert (type(answer), answer.reason) == (packets.Disconnect, R.NOT_AUTHORIZED)
        assert peer.connection.closed

    def test_reduced_rules_end_subscriptions(self, joe: CredentialUser) -> None:
        site = Gated(joe)
        peer = opened(site)
        peer.send(packets.Subscribe(1, (SubscriptionRequest("up/#", 0),)))
        peer.sent()
        site.gate._users = {"joe": with_rules(joe, [])}  # the change that will revoke
        client = scram.ScramClient("joe", "s3cret")
        peer.send(scram_auth(client.first(), R.RE_AUTHENTICATE))
        peer.send(scram_auth(client.answer(peer.sent()[0].properties.authentication_data)))
        assert peer.sent()[0].reason is R.SUCCESS
        assert site.sessions._table.opened["c"].subscribers == {}

    @pytest.mark.parametrize("first", [b"", b"y,,n=", b"p=tls-unique,,n=joe,r=x", b"\xff"])
    def test_nonsense_is_refused(self, joe: CredentialUser, first: bytes) -> None:
        peer = Gated(joe).connect(scram.MECHANISM, first)
        (answer,) = peer.sent()
        assert (type(answer), answer.reason) == (packets.ConnAck, R.BAD_USER_NAME_OR_PASSWORD)
        assert peer.connection.closed

    @pytest.mark.parametrize(("user", "password"), [("joe", "wrong"), ("nobody", "s3cret")])
    def test_wrong_proof_is_refused(self, joe: CredentialUser, user: str, password: str) -> None:
        site = Gated(joe)
        client = scram.ScramClient(user, password)
        peer = site.connect(scram.MECHANISM, client.first())
        (question,) = peer.sent()  # the same for an unknown user
        peer.send(scram_auth(client.answer(question.properties.authentication_data)))
        assert peer.sent()[0].reason is R.BAD_USER_NAME_OR_PASSWORD
        assert len(site.sessions) == 0

    def test_user_name_must_match(self, joe: CredentialUser) -> None:
        client = scram.ScramClient("joe", "s3cret")
        peer = Gated(joe).connect(scram.MECHANISM, client.first(), username="jane")
        peer.send(scram_auth(client.answer(peer.sent()[0].properties.authentication_data)))
        assert peer.sent()[0].reason is R.BAD_USER_NAME_OR_PASSWORD

    def test_guessing_is_slow(self, joe: CredentialUser) -> None:
        site = Gated(joe)
        for _ in range(FAILURES_PER_USER_MAX):
            site.gate.failed("192.0.2.1", "joe")
        peer = site.connect(scram.MECHANISM, scram.ScramClient("joe", "s3cret").first())
        assert peer.sent()[0].reason is R.SERVER_BUSY
        site.now = 60.0
        opened(site)

    def test_changed_user_starts_with_no_failures_and_others_keep_theirs(self, joe: CredentialUser) -> None:
        """A device may try for long before an operator adds it, or gives it its secret."""
        site = Gated()
        jane = with_secret(new_user("jane"), "other", at_s=NOW)
        for name in ("joe", "jane", "nobody"):
            for _ in range(FAILURES_PER_USER_MAX):
                site.gate.failed("192.0.2.1", name)
        site.gate.update(CredentialSnapshot({"jane": jane}))
        assert site.gate.too_many_failures("192.0.2.1", "joe")
        site.gate.update(CredentialSnapshot({"joe": joe, "jane": jane}))
        opened(site)
        assert site.gate.too_many_failures("192.0.2.1", "nobody")
        site.gate.failed("192.0.2.1", "jane")
        assert not site.gate.too_many_failures("192.0.2.1", "jane")

    def test_address_stays_slow_when_users_are_added(self, joe: CredentialUser) -> None:
        site = Gated()
        for number in range(FAILURES_PER_ADDRESS_MAX):
            site.gate.failed("192.0.2.1", f"user{number}")
        site.gate.update(CredentialSnapshot({"joe": joe}))
        assert site.gate.too_many_failures("192.0.2.1", "joe")

    def test_recent_user_is_accepted_in_spite_of_failures_of_its_address(self, joe: CredentialUser) -> None:
        """An attacker behind the same router makes 110 bogus exchanges."""
        site = Gated(joe)
        opened(site)
        for number in range(FAILURES_PER_ADDRESS_MAX + 10):
            client = scram.ScramClient(f"bogus{number}", "x")
            peer = site.connect(scram.MECHANISM, client.first())
            (answer,) = peer.sent()
            if answer.reason is not R.SERVER_BUSY:
                peer.send(scram_auth(client.answer(answer.properties.authentication_data)))
        assert site.gate.too_many_failures("192.0.2.1", "jane"), "she has not logged in there"
        opened(site)
        for _ in range(FAILURES_PER_USER_MAX):
            site.gate.failed("192.0.2.1", "joe")
        assert site.gate.too_many_failures("192.0.2.1", "joe"), "guessing at him is slow all the same"

    def test_success_is_remembered_for_a_while_at_its_address(self, joe: CredentialUser) -> None:
        site = Gated(joe)
        opened(site)
        site.now = SUCCESS_KEPT_S
        for address in ("192.0.2.1", "192.0.2.2"):
            for number in range(FAILURES_PER_ADDRESS_MAX):
                site.gate.failed(address, f"bogus{number}")
            assert site.gate.too_many_failures(address, "joe")

    def test_remembered_successes_are_bounded(self, joe: CredentialUser) -> None:
        failures = Failures()
        for number in range(SUCCESSES_KEPT_MAX + 1):
            failures.succeeded("192.0.2.1", f"user{number}", 0.0)
        for number in range(FAILURES_PER_ADDRESS_MAX):
            failures.add("192.0.2.1", f"bogus{number}", 0.0)
        assert failures.too_many("192.0.2.1", "user0", 0.0), "the oldest is forgotten"
        assert not failures.too_many("192.0.2.1", "user1", 0.0)


class TestGuessedTokens:
    def test_address_with_too_many_bad_tokens_waits_without_affecting_others(self) -> None:
        """A token identifies no user until it is verified, so only the address counts."""
        site = Gated(tokens=True)
        for _ in range(FAILURES_PER_ADDRESS_MAX):
            refused = site.connect(bearer.MECHANISM, token_of("bad")).sent()[0]
            assert refused.reason is R.BAD_USER_NAME_OR_PASSWORD
        good = token_of("ann", 2 * FAILURES_PERIOD_S)
        assert site.connect(bearer.MECHANISM, good).sent()[0].reason is R.SERVER_BUSY
        said: list[LoginVerdict] = []
        site.gate.check_bearer(good, lambda verdict, _: said.append(verdict), "192.0.2.99")
        assert said == [LoginVerdict.ACCEPTED]
        site.now = FAILURES_PERIOD_S
        assert site.connect(bearer.MECHANISM, good).sent()[0].reason is R.SUCCESS


class TestMethods:
    @pytest.mark.parametrize(
        ("method", "tokens"),
        [("PLAIN", False), (bearer.MECHANISM, False), (scram.MECHANISM, True), ("", False)],
    )
    def test_disabled_methods_are_refused(self, joe: CredentialUser, method: str, tokens: bool) -> None:
        (answer,) = Gated(joe, tokens=tokens).connect(method, b"").sent()
        assert answer.reason is R.BAD_AUTHENTICATION_METHOD

    def test_methods_are_refused_without_authentication(self) -> None:
        site = Gated()
        site.gate.change_mode(AuthenticationMode.NONE)
        assert site.connect(scram.MECHANISM, b"").sent()[0].reason is R.BAD_AUTHENTICATION_METHOD


def token_of(user: str, expires_in_s: float = 60.0) -> bytes:
    return bearer.message(f"{user}-{NOW + expires_in_s:.0f}")


class TestBearer:
    def test_token_is_valid_until_it_expires(self) -> None:
        site = Gated(tokens=True)
        peer = site.connect(bearer.MECHANISM, token_of("ann"), will=packets.WillMessage("up/will", b"gone"))
        watcher = site.connect(bearer.MECHANISM, token_of("ann", 600), client_id="w")
        watcher.send(packets.Subscribe(1, (SubscriptionRequest("up/#", 0),)))
        watcher.sent()
        assert peer.sent()[0].reason is R.SUCCESS
        site.utc_s, site.now = NOW + 59, TOKEN_EXPIRY_CHECK_S
        site.gate.expire()
        assert not peer.connection.closed
        site.utc_s, site.now = NOW + 60, 2 * TOKEN_EXPIRY_CHECK_S
        site.gate.expire()
        (answer,) = peer.sent()
        assert (type(answer), answer.reason) == (packets.Disconnect, R.MAXIMUM_CONNECT_TIME)
        assert peer.connection.closed
        assert [packet.topic for packet in watcher.sent()] == ["up/will"]

    def test_token_renewed_in_time_keeps_the_connection(self) -> None:
        site = Gated(tokens=True)
        peer = site.connect(bearer.MECHANISM, token_of("ann"))
        peer.send(auth(token_of("ann", 120), bearer.MECHANISM, R.RE_AUTHENTICATE))
        assert [packet.reason for packet in peer.sent()] == [R.SUCCESS, R.SUCCESS]
        site.utc_s, site.now = NOW + 119, TOKEN_EXPIRY_CHECK_S
        site.gate.expire()
        assert not peer.connection.closed
        site.utc_s, site.now = NOW + 120, 2 * TOKEN_EXPIRY_CHECK_S
        site.gate.expire()
        assert peer.connection.closed

    @pytest.mark.parametrize("user", ["bad", "bob"])
    def test_renewal_with_a_bad_token_closes(self, user: str) -> None:
        peer = Gated(tokens=True).connect(bearer.MECHANISM, token_of("ann"))
        peer.send(auth(token_of(user), bearer.MECHANISM, R.RE_AUTHENTICATE))
        assert [packet.reason for packet in peer.sent()] == [R.SUCCESS, R.NOT_AUTHORIZED]
        assert peer.connection.closed

    def test_reduced_rights_apply(self) -> None:
        site = Gated(tokens=True)
        user = with_rules(new_user("poor"), [RULE])
        site.gate.update(CredentialSnapshot({"poor": user}))
        peer = site.connect(bearer.MECHANISM, token_of("poor"))
        peer.send(packets.Publish("up/1", b"x", 1, packet_id=1))
        assert not peer.sent()[-1].reason.failed  # under the rules of the user of this name
        site.gate._users = {}
        peer.send(auth(token_of("poor"), bearer.MECHANISM, R.RE_AUTHENTICATE))
        peer.send(packets.Publish("up/1", b"x", 1, packet_id=2))
        assert [packet.reason for packet in peer.sent()] == [R.SUCCESS, R.NOT_AUTHORIZED]

    @pytest.mark.parametrize("version", [4, 5])
    def test_token_replaces_a_password(self, version: int) -> None:
        site = Gated(tokens=True)
        token = f"ann-{NOW + 9:.0f}".encode()
        assert GatedPeer(site, version, username="token", password=token).sent()[0].reason is R.SUCCESS
        assert site.sessions.owner("c") == "ann"
        refused = GatedPeer(site, version, username="ann", password=b"bad", client_id="d").sent()[0]
        assert refused.reason is R.BAD_USER_NAME_OR_PASSWORD

    @pytest.mark.parametrize(
        "message", [b"", b"n,,\x01auth=Basic x\x01\x01", b"n,,\x01auth=Bearer \x01\x01", token_of("bad")]
    )
    def test_nonsense_token_is_refused(self, message: bytes) -> None:
        assert Gated(tokens=True).connect(bearer.MECHANISM, message).sent()[0].reason is R.BAD_USER_NAME_OR_PASSWORD

    def test_token_may_not_act_for_another_user(self) -> None:
        message = bearer.message(f"ann-{NOW + 9:.0f}", "bob")
        assert Gated(tokens=True).connect(bearer.MECHANISM, message).sent()[0].reason is R.BAD_USER_NAME_OR_PASSWORD
