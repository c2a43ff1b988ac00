"""The gate: late verdicts, overlapping secrets, and the cost of many guesses."""

from __future__ import annotations

import logging
from collections import deque

import pytest

from bridge.engine.machine import Engine
from bridge.limits import LOGIN_WAIT_S_MAX
from bridge.sasl import SaslClient, SaslServer
from bridge.sasl.scram import ScramClient, ScramError, ScramServer
from edge.broker.configuration import AuthenticationMode
from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.security import authenticator as identity
from edge.broker.security import credentials
from edge.broker.security.authenticator import Authenticator, Done, Work
from edge.broker.security.credentials import (
    CredentialSnapshot,
    CredentialUser,
    end_secrets,
    new_user,
    with_hash,
    with_rules,
    with_secret,
)
from edge.broker.security.limits import (
    PASSWORD_BYTES_MAX,
    VERDICT_KEPT_S,
    VERIFICATION_WAIT_S_MAX,
    VERIFICATIONS_MAX,
    VERIFICATIONS_PER_USER_MAX,
)
from edge.broker.security.proof import LoginVerdict, VerifiedIdentity
from edge.broker.security.sasl_credentials import SaslCredentials
from tests.support.mosquitto_passwords import mosquitto_hash

NOW = 1_000_000.0
RULE = AccessRule(("up/#",), frozenset({Operation.SEND}))


@pytest.fixture(scope="module")
def joe() -> CredentialUser:
    return with_secret(new_user("joe", [RULE]), "s3cret", at_s=NOW)


class Rig:
    """A gate; the test runs its worker and moves its clocks."""

    def __init__(self, *users: CredentialUser, mode: AuthenticationMode = AuthenticationMode.STANDARD) -> None:
        self.waiting: deque[tuple[Work, Done]] = deque()
        self.now = 0.0
        self.utc_s = NOW
        self.gate = Authenticator(
            mode,
            CredentialSnapshot({user.name: user for user in users}, b"k"),
            worker=lambda work, done: self.waiting.append((work, done)),
            clock=lambda: self.now,
            utc_s=lambda: self.utc_s,
        )

    def ask(self, username: str | None, password: str | None) -> list[LoginVerdict]:
        verdicts: list[LoginVerdict] = []
        secret = None if password is None else password.encode()
        self.gate.check(username, secret, lambda said, _: verdicts.append(said))
        return verdicts

    def work(self) -> None:
        while self.waiting:
            work, done = self.waiting.popleft()
            done(work())

    def verdict(self, username: str | None, password: str | None) -> LoginVerdict:
        verdicts = self.ask(username, password)
        self.work()
        (verdict,) = verdicts
        return verdict


class TestVerdicts:
    def test_right_password_is_accepted_and_wrong_one_is_refused(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        assert rig.verdict("joe", "s3cret") is LoginVerdict.ACCEPTED
        assert rig.verdict("joe", "S3cret") is LoginVerdict.REFUSED
        assert rig.verdict("jane", "s3cret") is LoginVerdict.REFUSED
        assert rig.verdict(None, None) is LoginVerdict.REFUSED
        assert rig.verdict("joe", None) is LoginVerdict.REFUSED
        assert rig.gate.refused == 4

    def test_right_password_is_cached_for_a_limited_time(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        assert rig.ask("joe", "s3cret") == []  # later
        rig.work()
        assert rig.ask("joe", "s3cret") == [LoginVerdict.ACCEPTED]  # at once
        assert rig.ask("joe", "wrong") == []
        rig.work()
        rig.now += VERDICT_KEPT_S
        assert rig.ask("joe", "s3cret") == []
        rig.work()
        assert rig.gate.verifications == 3

    def test_unknown_user_costs_as_much_as_a_wrong_password(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        rig.ask("jane", "x")
        assert len(rig.waiting) == 1
        rig.work()
        assert rig.gate.verifications == 1

    def test_user_who_is_added_during_the_verification_logs_in(self, joe: CredentialUser) -> None:
        """The users are read on another thread at that moment, so that the name was still unknown."""
        rig = Rig()
        verdicts = rig.ask("joe", "s3cret")
        rig.gate.update(CredentialSnapshot({"joe": joe}, b"k"))
        rig.work()
        assert verdicts == [LoginVerdict.ACCEPTED]
        assert rig.gate.refused == 0

    def test_user_of_another_broker_logs_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A password logs in, SCRAM does not; the time does not show that its hash is of another form."""
        decoys = list[bytes]()
        monkeypatch.setattr("edge.broker.security.authenticator._verify_decoy", decoys.append)
        rig = Rig(with_hash(new_user("pump7"), mosquitto_hash("s3cret")))
        assert rig.verdict("pump7", "secret") is LoginVerdict.REFUSED
        assert rig.verdict("pump7", "s3cret") is LoginVerdict.ACCEPTED
        assert decoys == [b"secret", b"s3cret"]
        assert list(rig.gate.scram("pump7").keys) == []

    def test_verdicts_are_returned_when_ready(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        order: list[str] = []
        rig.gate.check("joe", b"wrong", lambda verdict, _: order.append(f"first {verdict.name}"))
        rig.gate.check("joe", b"s3cret", lambda verdict, _: order.append(f"second {verdict.name}"))
        rig.waiting.rotate(1)
        rig.work()
        assert order == ["second ACCEPTED", "first REFUSED"]

    def test_user_removed_during_verification_is_refused(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        verdicts = rig.ask("joe", "s3cret")
        rig.gate.update(CredentialSnapshot())
        rig.work()
        assert verdicts == [LoginVerdict.REFUSED]

    def test_removed_user_leaves_the_cache(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        assert rig.verdict("joe", "s3cret") is LoginVerdict.ACCEPTED
        rig.gate.update(CredentialSnapshot())
        assert rig.verdict("joe", "s3cret") is LoginVerdict.REFUSED

    @pytest.mark.parametrize("mode", [AuthenticationMode.EXTERNAL, AuthenticationMode.NONE])
    def test_passwords_count_only_with_standard_authentication(
        self, joe: CredentialUser, mode: AuthenticationMode
    ) -> None:
        assert Rig(joe, mode=mode).verdict("joe", "s3cret") is LoginVerdict.REFUSED

    def test_secrets_are_not_logged(self, joe: CredentialUser, caplog: pytest.LogCaptureFixture) -> None:
        rig = Rig(joe)
        with caplog.at_level(logging.DEBUG):
            rig.verdict("joe", "hunter2")
            for _ in range(9):
                rig.verdict("joe", "hunter2")
        assert [record.getMessage() for record in caplog.records] == [
            "user 'joe': wrong user name or password (1 since start)"
        ]
        assert "hunter2" not in repr((joe, rig.gate.__dict__))
        assert joe.secrets[0].hashed not in repr(joe)


class TestRotation:
    def test_overlapping_secrets_are_accepted(self, joe: CredentialUser) -> None:
        rotated = with_secret(end_secrets(joe, NOW + 100), "fresh", at_s=NOW, not_before=NOW + 50)
        rig = Rig(rotated)
        for utc_s, old, new in ((NOW, True, False), (NOW + 50, True, True), (NOW + 100, False, True)):
            rig.utc_s = utc_s
            assert (rig.verdict("joe", "s3cret") is LoginVerdict.ACCEPTED) is old
            assert (rig.verdict("joe", "fresh") is LoginVerdict.ACCEPTED) is new

    def test_cached_secret_ends_in_time(self, joe: CredentialUser) -> None:
        rig = Rig(end_secrets(joe, NOW + 1))
        assert rig.verdict("joe", "s3cret") is LoginVerdict.ACCEPTED
        rig.utc_s = NOW + 1
        assert rig.verdict("joe", "s3cret") is LoginVerdict.REFUSED

    def test_scram_accepts_every_valid_secret(self, joe: CredentialUser) -> None:
        rig = Rig(with_secret(end_secrets(joe, NOW + 100), "fresh", at_s=NOW))

        def proves(password: str) -> bool:
            client, server = ScramClient("joe", password), ScramServer()
            server.first(client.first())
            try:
                client.check(server.finish(client.answer(server.challenge(rig.gate.scram("joe")))))
            except ScramError:
                return False
            return True

        assert [proves(password) for password in ("s3cret", "fresh", "other")] == [True, True, False]
        rig.utc_s = NOW + 100
        assert [proves(password) for password in ("s3cret", "fresh")] == [False, True]

    def test_unknown_user_is_indistinguishable_from_a_known_one(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        known, unknown = rig.gate.scram("joe"), rig.gate.scram("jane")
        assert (len(unknown.salt), unknown.iterations) == (len(known.salt), known.iterations)
        assert rig.gate.scram("jane") == unknown != rig.gate.scram("john")


class TestBounds:
    def test_one_user_cannot_delay_all_others(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        for _ in range(VERIFICATIONS_PER_USER_MAX):
            assert rig.ask("joe", "wrong") == []
        assert rig.ask("joe", "wrong") == [LoginVerdict.BUSY]
        for i in range(VERIFICATIONS_PER_USER_MAX):  # unknown names are counted together
            assert rig.ask(f"nobody{i}", "wrong") == []
        assert rig.ask("nobody", "wrong") == [LoginVerdict.BUSY]
        assert rig.gate.busy == 2
        rig.work()
        assert rig.verdict("joe", "s3cret") is LoginVerdict.ACCEPTED

    def test_waiting_logins_are_bounded_in_total(self) -> None:
        users = [new_user(f"u{i}") for i in range(VERIFICATIONS_MAX + 1)]
        rig = Rig(*users)
        for user in users[:-1]:
            assert rig.ask(user.name, "x") == []
        assert rig.ask(users[-1].name, "x") == [LoginVerdict.BUSY]

    def test_login_that_waits_too_long_is_refused_as_busy_and_accepted_on_retry(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        verdicts = rig.ask("joe", "s3cret")
        rig.now = VERIFICATION_WAIT_S_MAX - 0.1
        rig.gate.expire()
        assert (verdicts, rig.gate.waits_s) == ([], rig.now)
        rig.now = VERIFICATION_WAIT_S_MAX
        work, done = rig.waiting.popleft()
        secret = work()  # it runs after the deadline
        rig.gate.expire()
        rig.gate.expire()
        assert (verdicts, rig.gate.late, rig.gate.busy, rig.gate.waits_s) == ([LoginVerdict.BUSY], 1, 1, 0.0)
        done(secret)
        assert verdicts == [LoginVerdict.BUSY], "once"
        assert rig.ask("joe", "s3cret") == [LoginVerdict.ACCEPTED]

    def test_abandoned_login_is_not_hashed_and_not_counted_as_failure(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        for _ in range(VERIFICATIONS_PER_USER_MAX):
            rig.ask("joe", "wrong")
        rig.now = VERIFICATION_WAIT_S_MAX
        rig.gate.expire()
        assert rig.ask("joe", "wrong") == [LoginVerdict.BUSY], "their places are taken until the work has ended"
        assert [work() for work, _ in rig.waiting] == [None] * VERIFICATIONS_PER_USER_MAX
        rig.work()
        assert rig.gate.refused == 0
        assert rig.verdict("joe", "s3cret") is LoginVerdict.ACCEPTED

    def test_cached_password_is_accepted_during_a_storm(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        assert rig.verdict("joe", "s3cret") is LoginVerdict.ACCEPTED
        while rig.ask("joe", "wrong") != [LoginVerdict.BUSY]:
            pass
        assert rig.ask("joe", "s3cret") == [LoginVerdict.ACCEPTED]

    def test_long_password_is_not_hashed(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        assert rig.ask("joe", "x" * (PASSWORD_BYTES_MAX + 1)) == [LoginVerdict.REFUSED]
        assert not rig.waiting

    def test_cached_verdicts_are_bounded(self, joe: CredentialUser, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(identity, "USERS_MAX", 1)
        jane = with_secret(new_user("jane"), "s3cret", at_s=NOW)
        rig = Rig(joe, jane)
        assert rig.verdict("joe", "s3cret") is LoginVerdict.ACCEPTED
        assert rig.verdict("jane", "s3cret") is LoginVerdict.ACCEPTED
        assert rig.ask("jane", "s3cret") == [LoginVerdict.ACCEPTED]
        assert rig.ask("joe", "s3cret") == []  # forgotten for jane, and verified again


class TestGrants:
    def test_changed_rules_cut_the_connections(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        cut: list[str] = []
        one = rig.gate.grant(VerifiedIdentity("joe"), "c1", lambda _: cut.append("one"))
        two = rig.gate.grant(VerifiedIdentity("joe"), "c2", lambda _: cut.append("two"))
        assert one is not None
        assert two is not None
        assert one.may_send("up/1")
        rig.gate.release(two)
        rig.gate.update(CredentialSnapshot({"joe": with_secret(joe, "another", at_s=NOW)}))
        assert cut == []  # a new secret does not end a connection
        rig.gate.update(CredentialSnapshot({"joe": with_rules(joe, [])}))
        assert cut == ["one"]
        rig.gate.update(CredentialSnapshot())
        assert cut == ["one", "one"]
        rig.gate.release(one)
        rig.gate.release(one)
        assert rig.gate.grant(VerifiedIdentity("joe"), "c1", lambda _: None) is None


class TestSasl:
    """SASL PLAIN with a late verdict, as the engine sees it."""

    def begin(self, rig: Rig, password: str) -> tuple[SaslClient, SaslServer, list[str]]:
        woken: list[str] = []
        asked = SaslCredentials(rig.gate)
        asked.connected(lambda: woken.append("turn"), "192.0.2.1")
        server = SaslServer(credentials=asked)
        client = SaslClient("joe", password, plain=True)
        client._wanted = ["PLAIN"]
        server.receive(client.take())
        client.receive(server.take())
        server.receive(client.take() + b"early")
        return client, server, woken

    def test_outcome_waits_and_early_bytes_are_buffered(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        client, server, woken = self.begin(rig, "s3cret")
        assert server.deciding
        assert (server.done, server.take(), woken) == (False, b"", [])
        rig.work()
        assert woken == ["turn"]
        server.receive(b"")
        assert (server.done, server.identity, server.rest) == (True, "joe", b"early")
        client.receive(server.take())
        assert client.done

    def test_cached_password_is_answered_at_once(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        rig.verdict("joe", "s3cret")
        _, server, woken = self.begin(rig, "s3cret")
        assert server.done
        assert woken == []  # no nested turn

    @pytest.mark.parametrize(("busy", "outcome"), [(False, 1), (True, 4)])
    def test_refused_and_busy_have_separate_outcomes(self, joe: CredentialUser, busy: bool, outcome: int) -> None:
        rig = Rig(joe)
        for _ in range(VERIFICATIONS_PER_USER_MAX if busy else 0):
            rig.ask("joe", "wrong")
        client, server, _ = self.begin(rig, "wrong")
        rig.work()
        client.receive(server.take())
        assert client.failure == f"the peer refused our credentials (SASL outcome {outcome})"
        assert server.failure is not None

    def test_time_of_verification_does_not_count_against_the_client(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        asked = SaslCredentials(rig.gate)
        client = SaslClient("joe", "s3cret", plain=True)
        client._wanted = ["PLAIN"]
        server = Engine(container_id="s", server=True, sasl=SaslServer(credentials=asked), now=0.0)
        server.receive_data(client.take(), 1.0)
        client.receive(server.data_to_send())
        server.receive_data(client.take(), 4.0)
        assert server.deadline == 10.0 + LOGIN_WAIT_S_MAX
        assert not server.handle_timeout(15.0)
        rig.work()
        server.receive_data(b"", 19.0)
        client.receive(server.data_to_send())
        assert client.done
        assert server.deadline == 10.0 + (19.0 - 4.0), "it has as long as before for the rest"
        assert not server.closed

    def test_login_that_waits_too_long_is_a_temporary_failure(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        client, server, woken = self.begin(rig, "s3cret")
        rig.now = VERIFICATION_WAIT_S_MAX
        rig.gate.expire()
        client.receive(server.take())
        assert (client.failure, woken) == ("the peer refused our credentials (SASL outcome 4)", ["turn"])

    def test_early_bytes_are_bounded(self, joe: CredentialUser) -> None:
        rig = Rig(joe)
        _, server, _ = self.begin(rig, "s3cret")
        failures = []
        for data in (bytes(65_536 - len(b"early")), b"x"):
            server.receive(data)
            failures.append(server.failure)
        assert failures == [None, "more than 65536 bytes before the outcome"]
        rig.work()  # the verdict is discarded
        assert not server.done

    def test_anonymous_is_not_a_user_name(self, joe: CredentialUser) -> None:
        anonymous = with_secret(new_user("anonymous"), "s3cret", at_s=NOW)
        answers: list[str | None] = []

        def answer(identity: str | None, *, temporary: bool = False) -> None:
            answers.append(identity)

        SaslCredentials(Rig(joe, anonymous).gate).plain("anonymous", b"s3cret", answer)
        assert answers == [None]


def test_hash_is_argon2id(joe: CredentialUser) -> None:
    assert joe.secrets[0].hashed.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert credentials.verify(joe, b"s3cret", NOW) == joe.secrets[0]
