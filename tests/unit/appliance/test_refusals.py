"""Pages of refused clients, and the notice for a device that is refused again and again."""

from __future__ import annotations

from edge.appliance.clients.refusals import DEVICES_NAMED_MAX, REFUSED_S, page_of_refusals, refusal_problems
from edge.broker.limits import REFUSAL_TIMES_MAX
from edge.broker.model.refusals import RefusalCause, RefusalJournal
from edge.health.problems import FoundProblem, Severity


class Refused(RefusalJournal):
    """Journal with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0
        super().__init__(lambda: self.now)

    def problems(self) -> list[FoundProblem]:
        return list(refusal_problems(self, lambda: self.now))


class TestPages:
    def test_pages_continue_where_the_last_one_ended(self) -> None:
        journal = Refused()
        for number in range(7):
            journal.add(RefusalCause.UNKNOWN_USER, user=f"u{number}")
        first = page_of_refusals(journal, limit=3)
        assert [each.user for each in first.refusals] == ["u6", "u5", "u4"]
        assert (first.total, first.next) == (7, str(first.refusals[-1].number))
        journal.add(RefusalCause.UNKNOWN_USER, user="new")
        second = page_of_refusals(journal, limit=3, after=int(first.next or ""))
        assert [each.user for each in second.refusals] == ["u3", "u2", "u1"]
        third = page_of_refusals(journal, limit=3, after=int(second.next or ""))
        assert ([each.user for each in third.refusals], third.next) == (["u0"], None)

    def test_only_those_with_a_text(self) -> None:
        journal = Refused()
        journal.add(RefusalCause.UNKNOWN_USER, "192.0.2.1", user="pump8")
        journal.add(RefusalCause.NOT_ALLOWED_TO_SEND, "192.0.2.2", user="m", address="plant/pump8/x")
        journal.add(RefusalCause.NOT_ALLOWED_TO_SEND, "192.0.2.3", user="m", address="plant/pump9/x")
        assert page_of_refusals(journal, limit=9, text="pump8").total == 2
        assert page_of_refusals(journal, limit=9, client="m").total == 2

    def test_an_entry_says_why_and_what_to_do(self) -> None:
        journal = Refused()
        journal.add(RefusalCause.WRONG_PASSWORD, "192.0.2.1", user="pump8", client="p8")
        (entry,) = page_of_refusals(journal, limit=1).refusals
        assert (entry.reason, entry.remote, entry.client, entry.count) == ("wrong-password", "192.0.2.1", "p8", 1)
        assert "pump8" in entry.what
        assert "user rotate pump8" in entry.next_step


class TestProblem:
    def refuse(self, journal: Refused, times: int, user: str = "pump8", client: str = "p8") -> None:
        for _ in range(times):
            journal.add(RefusalCause.WRONG_PASSWORD, "192.0.2.1", user=user, client=client)

    def test_it_takes_some_refusals_within_ten_minutes(self) -> None:
        journal = Refused()
        self.refuse(journal, REFUSAL_TIMES_MAX - 1)
        assert journal.problems() == []
        self.refuse(journal, 1)
        (found,) = journal.problems()
        assert (found.name, found.severity) == ("device refused", Severity.NOTICE)
        assert found.what.startswith("pump8 from 192.0.2.1: ")
        journal.now += REFUSED_S + 1
        assert journal.problems() == []

    def test_slow_refusals_are_no_problem(self) -> None:
        journal = Refused()
        for _ in range(20):
            self.refuse(journal, 1)
            journal.now += REFUSED_S / (REFUSAL_TIMES_MAX - 1)
        assert journal.problems() == []

    def test_a_device_with_another_client_identifier_each_time_is_one_device(self) -> None:
        journal = Refused()
        for number in range(REFUSAL_TIMES_MAX):
            self.refuse(journal, 1, client=f"random{number}")
        assert len(journal.problems()) == 1

    def test_a_client_that_guesses_names_does_not_fill_the_list(self) -> None:
        journal = Refused()
        for number in range(3 * DEVICES_NAMED_MAX):
            self.refuse(journal, REFUSAL_TIMES_MAX, user=f"guess{number}")
        assert len(journal.problems()) == DEVICES_NAMED_MAX
