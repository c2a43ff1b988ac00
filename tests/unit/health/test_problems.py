"""Problems: their conditions, their start, and changes that move it."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.health.certificates import CertificateError, certificate_problems, certificates_in
from edge.health.counter_rise import RECENT_S, CounterRise
from edge.health.loop_lag import LAG_S_MAX, TIMES_MAX, LoopLag
from edge.health.problems import PROBLEMS_MAX, FoundProblem, HealthChecks, ProblemList, Severity, serving
from edge.health.process import descriptor_problems, directory_problems, log_problems
from edge.health.stall_detector import STALLED_S, StallDetector
from tests.support.certificates import Authority


def test_counter_increase_is_recent_for_a_minute() -> None:
    now = [0.0]
    rising = CounterRise(lambda: now[0])
    assert rising.lately({}) == frozenset()
    assert rising.lately({"a": 1}) == {"a"}
    now[0] = RECENT_S - 1
    assert rising.lately({"a": 1}) == {"a"}
    assert rising.lately({"a": 2}) == {"a"}
    now[0] += 2
    assert rising.lately({"a": 2}) == {"a"}
    now[0] += RECENT_S
    assert rising.lately({"a": 2}) == frozenset()


def test_start_is_the_first_sighting_and_restarts_after_the_end() -> None:
    now = [1_780_000_000.0]
    problems = ProblemList(lambda: now[0])
    first, second = FoundProblem("store", "full", "free space"), FoundProblem("space", "full", "raise it")
    [begun] = problems.update([first])
    now[0] += 60
    later = problems.update([second, first])
    assert [(one.name, one.since) for one in later] == [("store", begun.since), ("space", "2026-05-28T20:27:40+00:00")]
    assert problems.update([]) == []
    assert problems.update([first])[0].since == "2026-05-28T20:27:40+00:00"


def test_problems_are_listed_by_severity_and_only_errors_stop_serving() -> None:
    notice = FoundProblem("n", "o", "p", Severity.NOTICE)
    warning, error = FoundProblem("a", "b", "c", Severity.WARNING), FoundProblem("d", "e", "f")
    listed = ProblemList()
    assert serving(listed.update([notice, warning]))
    everything = listed.update([notice, warning, error])
    assert [one.name for one in everything] == ["d", "a", "n"]
    assert not serving(everything)


def test_notice_is_logged_as_information(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "edge.health"):
        ProblemList().update([FoundProblem("uplink", "the hub is away", "nothing is lost", Severity.NOTICE)])
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_start_and_end_of_a_problem_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    listed, found = ProblemList(), FoundProblem("store", "full", "free space")
    with caplog.at_level("INFO", "edge.health"):
        for _ in range(3):
            listed.update([found])
        listed.update([])
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_source_that_raises_is_a_problem_and_hides_no_other() -> None:
    def broken() -> Iterator[FoundProblem]:
        raise KeyError("secret")

    found = HealthChecks((broken, lambda: [FoundProblem("store", "full", "free space")])).problems()
    assert {one.name for one in found} == {"broken", "store"}
    assert "KeyError" in str(found)
    assert "secret" not in str(found)


def test_problems_are_bounded() -> None:
    found = HealthChecks(
        (lambda: [FoundProblem(str(number), "", "") for number in range(PROBLEMS_MAX * 2)],)
    ).problems()
    assert len(found) == PROBLEMS_MAX


def test_busy_work_without_progress_is_a_problem() -> None:
    now = [0.0]
    standing = StallDetector(lambda: now[0])
    assert not standing.is_stalled("a", 1, busy=True)
    now[0] = STALLED_S
    assert standing.is_stalled("a", 1, busy=True)
    assert not standing.is_stalled("a", 2, busy=True), "it moved"
    now[0] += STALLED_S - 1
    assert not standing.is_stalled("a", 2, busy=False)
    now[0] += STALLED_S
    assert not standing.is_stalled("a", 2, busy=True), "it has begun anew"
    standing.keep(())
    now[0] += STALLED_S
    assert not standing.is_stalled("a", 2, busy=True)


def test_blocked_loop_is_a_problem() -> None:
    async def held_up() -> LoopLag:
        lag = LoopLag()
        lag.start()
        time.sleep(LAG_S_MAX + 1.2)  # blocks the loop on purpose
        await asyncio.sleep(0.05)
        lag.stop()
        return lag

    lag = asyncio.run(held_up())
    assert lag.recent_s > LAG_S_MAX
    assert [one.severity for one in lag.problems()] == [Severity.WARNING]
    for _ in range(TIMES_MAX):
        lag.record(2 * LAG_S_MAX)
    assert [one.severity for one in lag.problems()] == [Severity.ERROR]
    for _ in range(100):
        lag.record(0.001)
    assert not list(lag.problems()), "it is over"
    assert lag.longest_s >= 2 * LAG_S_MAX


class TestCertificates:
    """Ends of certificates, read from PEM files."""

    def test_certificates_in_every_kind_of_file_are_read(self, tmp_path: Path) -> None:
        now = datetime.datetime.now(datetime.UTC)
        authority = Authority(tmp_path)
        for days, expected in ((-1, Severity.ERROR), (5, Severity.WARNING), (60, None)):
            path = authority.issue(f"server{days}", days=days).certificate
            found = list(certificate_problems([path], now))
            assert [one.severity for one in found] == ([] if expected is None else [expected]), days

    def test_invalid_certificate_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "a.pem").write_text("nothing")
        now = datetime.datetime.now(datetime.UTC)
        found = list(certificate_problems([str(tmp_path / "a.pem"), str(tmp_path / "b.pem")], now))
        assert ["cannot be read" in one.what for one in found] == [True, True]

    @pytest.mark.parametrize("data", [b"", b"0", b"\x30\x80", b"\x30\x05\x30\x03\x02\x01\x01", bytes(range(64, 128))])
    def test_any_bytes_are_accepted(self, data: bytes) -> None:
        with pytest.raises(CertificateError):
            certificates_in(ssl.DER_cert_to_PEM_cert(data).encode())
        with pytest.raises(CertificateError):
            certificates_in(data)


def test_directory_readable_by_others_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    [found] = directory_problems(tmp_path)
    assert "0755" in found.what
    tmp_path.chmod(0o700)
    assert not list(directory_problems(tmp_path))
    [gone] = directory_problems(tmp_path / "gone")
    assert gone.severity is Severity.ERROR


def test_exhausted_descriptors_are_reported() -> None:
    assert not list(descriptor_problems(10, 1024))
    [found] = descriptor_problems(1020, 1024)
    assert "1024" in found.what


def test_log_with_a_reader_is_no_problem() -> None:
    assert not list(log_problems())
