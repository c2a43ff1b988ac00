"""Spaces take turns at the threads that verify passwords."""

from __future__ import annotations

from edge.broker.security.authenticator import Done, Work
from edge.broker.security.credentials import CredentialSecret
from edge.broker.spaces.fair_verification import STARTED_MAX, FairVerification


class Threads:
    """Worker that verifies a password only when the test says so."""

    def __init__(self) -> None:
        self.started: list[tuple[Work, Done]] = []

    def __call__(self, work: Work, done: Done) -> None:
        self.started.append((work, done))

    def finish_first(self) -> None:
        work, done = self.started.pop(0)
        done(work())


class Logins:
    """Logins of some spaces, and the order in which they were verified."""

    def __init__(self, *, shared: bool = True) -> None:
        self.threads = Threads()
        self.verified: list[str] = []
        self._fair = FairVerification(self.threads, lambda: shared)

    def add(self, space: str, number: int) -> None:
        def done(_secret: CredentialSecret | None) -> None:
            self.verified.append(f"{space}{number}")

        self._fair.worker_of(space)(lambda: None, done)

    def finish(self) -> None:
        while self.threads.started:
            self.threads.finish_first()


def test_login_does_not_wait_behind_those_of_another_space() -> None:
    logins = Logins()
    for number in range(100):
        logins.add("attacked", number)
    logins.add("quiet", 0)
    assert len(logins.threads.started) == STARTED_MAX
    logins.finish()
    assert logins.verified.index("quiet0") <= STARTED_MAX + 1
    assert len(logins.verified) == 101


def test_spaces_take_turns_in_their_order() -> None:
    logins = Logins()
    for number in range(STARTED_MAX + 3):
        for space in ("a", "b", "c"):
            logins.add(space, number)
    logins.finish()
    assert sorted(logins.verified[-9:]) == sorted(f"{space}{STARTED_MAX + n}" for space in "abc" for n in range(3))


def test_one_space_has_all_threads() -> None:
    logins = Logins(shared=False)
    for number in range(100):
        logins.add("own", number)
    assert len(logins.threads.started) == 100


def test_failing_answer_frees_its_place() -> None:
    logins = Logins()
    for number in range(STARTED_MAX + 1):
        logins.add("a", number)
    work, done = logins.threads.started[0]

    def fail(_secret: CredentialSecret | None) -> None:
        raise ValueError

    logins._fair.worker_of("b")(work, fail)
    del done
    while logins.threads.started:
        try:
            logins.threads.finish_first()
        except ValueError:
            logins.verified.append("failed")
    assert len(logins.verified) == STARTED_MAX + 2
