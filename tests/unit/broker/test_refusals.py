"""The journal of refused clients: one entry a reason, bounded, with words for the operator."""

from __future__ import annotations

import pytest

from edge.broker.configuration import AuthenticationMode
from edge.broker.limits import (
    REFUSAL_REMOTE_SHARE,
    REFUSAL_TEXT_CHARACTERS_MAX,
    REFUSAL_TIMES_MAX,
    REFUSALS_KEPT_MAX,
)
from edge.broker.model.refusals import RefusalCause, RefusalJournal, describe_refusal, next_step_of_refusal
from edge.broker.security.authenticator import Authenticator, Done, Work
from edge.broker.security.credentials import CredentialSnapshot, new_user, with_secret
from edge.broker.security.limits import FAILURES_PER_USER_MAX
from edge.broker.security.proof import LoginVerdict

SHARE = REFUSALS_KEPT_MAX // REFUSAL_REMOTE_SHARE


class Journal(RefusalJournal):
    """Journal with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0
        super().__init__(lambda: self.now)


class TestJournal:
    def test_refusals_of_one_client_for_one_reason_are_one_entry(self) -> None:
        journal = Journal()
        for number in range(REFUSAL_TIMES_MAX + 2):
            journal.now = 1_000.0 + number
            journal.add(RefusalCause.WRONG_PASSWORD, "192.0.2.1", user="pump8", client="p8")
        (entry,) = journal.latest()
        assert (entry.count, entry.first_at, entry.last_at) == (7, 1_000.0, 1_006.0)
        assert entry.since(1_005.0) == 2
        assert entry.since(0.0) == REFUSAL_TIMES_MAX
        assert journal.counts == {"wrong-password": 7}

    def test_the_latest_is_first(self) -> None:
        journal = Journal()
        for user in ("a", "b", "a", "c"):
            journal.add(RefusalCause.UNKNOWN_USER, user=user)
        assert [(each.key.user, each.number) for each in journal.latest()] == [("c", 4), ("a", 3), ("b", 2)]

    def test_the_least_recent_is_dropped_first(self) -> None:
        journal = Journal()
        for number in range(REFUSALS_KEPT_MAX + 10):
            journal.add(RefusalCause.TLS, f"host{number}")
        assert len(journal) == REFUSALS_KEPT_MAX
        assert [each.key.remote for each in journal.latest()][-1] == "host10"
        assert journal.counts == {"tls": REFUSALS_KEPT_MAX + 10}

    def test_one_address_does_not_displace_the_others(self) -> None:
        journal = Journal()
        journal.add(RefusalCause.WRONG_PASSWORD, "192.0.2.1", user="pump8")
        for number in range(2 * REFUSALS_KEPT_MAX):
            journal.add(RefusalCause.UNKNOWN_USER, "192.0.2.66", user=f"guess{number}")
        assert len(journal) == SHARE + 1
        assert [each.key.user for each in journal.latest()][-1] == "pump8"

    def test_texts_of_clients_are_cut(self) -> None:
        journal = Journal()
        long = "x" * 10_000
        journal.add(RefusalCause.NOT_ALLOWED_TO_SEND, "h", user=long, client=long, address=long, detail=long)
        (entry,) = journal.latest()
        for text in (entry.key.user, entry.key.client, entry.address, entry.detail):
            assert len(text) == REFUSAL_TEXT_CHARACTERS_MAX


class TestWords:
    @pytest.mark.parametrize("cause", RefusalCause)
    def test_every_reason_has_words_and_a_next_step(self, cause: RefusalCause) -> None:
        journal = Journal()
        journal.add(cause, "192.0.2.1")
        (entry,) = journal.latest()
        for text in (describe_refusal(entry), next_step_of_refusal(entry)):
            assert text
            assert "{" not in text

    def test_names_of_clients_are_safe_in_a_shell_and_on_a_terminal(self) -> None:
        journal = Journal()
        journal.add(RefusalCause.WRONG_PASSWORD, user="x; rm -rf /\x1b[2J")
        (entry,) = journal.latest()
        assert "rotate 'x; rm -rf /\\x1b[2J'" in next_step_of_refusal(entry)
        assert describe_refusal(entry).isprintable()

    def test_a_hostile_name_is_no_format(self) -> None:
        journal = Journal()
        journal.add(RefusalCause.UNKNOWN_USER, user="{remote} {0} {user.__class__}")
        (entry,) = journal.latest()
        assert describe_refusal(entry) == "there is no user {remote} {0} {user.__class__}"


def at_once(work: Work, done: Done) -> None:
    done(work())


class TestLogins:
    """The client gets one answer, the operator the reason."""

    def gate(self, mode: AuthenticationMode = AuthenticationMode.STANDARD) -> Authenticator:
        user = with_secret(new_user("joe", ()), "right", at_s=0.0)
        return Authenticator(mode, CredentialSnapshot({"joe": user}), worker=at_once, clock=lambda: 0.0)

    @pytest.mark.parametrize(
        ("username", "password", "cause"),
        [
            ("joe", b"wrong", RefusalCause.WRONG_PASSWORD),
            ("jane", b"right", RefusalCause.UNKNOWN_USER),
            ("joe", None, RefusalCause.NO_CREDENTIALS),
            (None, b"right", RefusalCause.NO_CREDENTIALS),
        ],
    )
    def test_the_reason_is_recorded(self, username: str | None, password: bytes | None, cause: RefusalCause) -> None:
        gate, verdicts = self.gate(), list[LoginVerdict]()
        gate.check(username, password, lambda verdict, _: verdicts.append(verdict), "192.0.2.1", "client7")
        (entry,) = gate.refusals.latest()
        assert entry.key == ("192.0.2.1", username or "", "client7", cause)
        assert verdicts == [LoginVerdict.REFUSED]

    def test_a_client_that_has_to_wait_is_recorded_as_such(self) -> None:
        gate = self.gate()
        for _ in range(FAILURES_PER_USER_MAX + 1):
            gate.check("joe", b"wrong", lambda *_: None, "192.0.2.1")
        assert gate.refusals.counts == {"wrong-password": FAILURES_PER_USER_MAX, "throttled": 1}

    def test_a_token_that_is_not_valid(self) -> None:
        gate = self.gate(AuthenticationMode.EXTERNAL)
        gate.check_token(b"x", lambda *_: None, "192.0.2.1", "c")
        assert gate.refusals.counts == {"token": 1}

    def test_success_is_not_recorded(self) -> None:
        gate = self.gate()
        gate.check("joe", b"right", lambda *_: None, "192.0.2.1")
        assert not len(gate.refusals)
