"""`waypost bench` without running benchmarks: names, goals, table, chart, and missing programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from tests.bench import __main__ as program
from tests.bench import cases, packages, spread, unlike
from tests.bench.comparison import Benchmark, Settings
from tests.bench.latency import CommitTimes
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.plot import SHOWN_MAX, svg
from tests.bench.result import Result, at_least, at_most, figure
from tests.conftest import ROOT

RESULTS = [
    Result(
        "amqp-through-rabbitmq", "about <it>", "msg/s", 123_456.0, at_least(5, 7.5, " x"), "rabbitmq", 16_461.0, 7.5,
        60, 1_180,
    ),
    Result("mqtt-latency", "p99 & more", "us, p99", 1_234.5, None, "mosquitto-each", 2_000_000.0, 0.6, 50, 170),
    Result("writes-1000-kept-batch", "bytes", "bytes/byte", 3.125, at_most(2.5, 3.125)),
    Result("amqp-in-artemis", "both", "msg/s", 1.0, at_least(0.8, 90.0, " x")._replace(words=">= 0.8 x, RAM <= 0.1")),
]  # fmt: skip


def test_goal_is_met_at_its_bound_and_missed_beyond() -> None:
    assert at_least(2.0, 2.0).met
    assert not at_least(2.0, 1.99).met
    assert at_most(2.0, 2.0).met
    assert not at_most(2.0, 2.01).met
    assert (at_least(2.0, 3.0).share, at_most(3.0, 2.0).share) == (1.5, 1.5)


def test_figures_have_three_significant_digits() -> None:
    assert [figure(value) for value in (123_456.7, 99.44, 3.125, 0.0)] == ["123,457", "99.4", "3.12", "0.00"]


class TestCommitTimes:
    """Percentiles from two scrapes of a histogram."""

    before = CommitTimes({0.001: 5.0, 0.002: 5.0, float("inf"): 5.0})
    after = CommitTimes({0.001: 55.0, 0.002: 105.0, float("inf"): 105.0})

    def test_only_commits_of_the_period_count(self) -> None:
        assert self.after.percentile_us(0.5, since=self.before) == pytest.approx(1_000)

    def test_percentile_is_linear_within_a_bucket(self) -> None:
        assert self.after.percentile_us(0.75, since=self.before) == pytest.approx(1_500)
        assert self.after.percentile_us(0.25, since=self.before) == pytest.approx(500)

    def test_no_commits_give_no_percentile(self) -> None:
        assert self.after.percentile_us(0.99, since=self.after) == 0


class TestPaced:
    """`mqtt-fleet-latency` subtracts the time of its own commits."""

    @pytest.mark.parametrize(("p99", "met"), [(23.0, True), (23.1, False), (1.0, True)])
    def test_limits_are_99_percent_within_3_commits_and_20_ms(self, p99: float, met: bool) -> None:
        waits: dict[str, list[float]] = {"p50": [0.5], "p99": [p99], "commit_p99": [1.0]}
        usual, worst = unlike.paced(waits, {"p50": [0.1], "p99": [0.2]}, "mosquitto")
        assert (usual.met, worst.met, worst.value, worst.name) == (True, met, p99, "mqtt-fleet-latency-p99")
        assert worst.goal is not None
        assert worst.goal.words == "<= 3 commits + 20"


class TestOutput:
    """Output for a person and for a program."""

    def test_table_fits_80_columns(self, capsys: pytest.CaptureFixture[str]) -> None:
        program.show(RESULTS)
        table = capsys.readouterr().out
        assert max(map(len, table.splitlines())) <= 80
        for word in (
            "amqp-through-rabbitmq",
            "123,456",
            "16,461",
            "7.50",
            ">= 5 x",
            "met",
            "missed",
            "report",
            "1,180",
            "0.1",
        ):
            assert word in table, word
        assert "…" not in table

    def test_chart_is_xml_with_a_bar_for_each_goal(self) -> None:
        root = ET.fromstring(svg(RESULTS))
        space = "{http://www.w3.org/2000/svg}"
        bars = [bar for bar in root.iter(f"{space}rect") if bar.get("rx")]
        assert len(bars) == 3
        titles = [title.text for title in root.iter(f"{space}title")]
        assert titles == [result.about for result in RESULTS]
        goal = next(root.iter(f"{space}line"))
        widest = max(float(bar.get("width") or 0) for bar in bars)
        at_goal = float(goal.get("x1") or 0) - float(bars[0].get("x") or 0)
        assert widest == pytest.approx(at_goal * SHOWN_MAX, abs=1)

    def test_markdown_has_a_row_for_each_result(self) -> None:
        head, line, through, _, writes, _ = program.rows(RESULTS)
        assert (head.count("|"), set(line)) == (6, {"|", "-"})
        wanted = "| `amqp-through-rabbitmq` | about <it> | 123,456 msg/s | rabbitmq 16,461 msg/s | 7.50 |"
        assert through == wanted
        assert writes == "| `writes-1000-kept-batch` | bytes | 3.12 bytes/byte |  |  |"

    def test_json_contains_goal_and_details(self) -> None:
        told = json.loads(json.dumps(program.document(RESULTS[2])))
        assert told["goal"] == {"words": "<= 2.5", "share": 0.8, "met": False}
        assert (told["met"], told["details"]) == (False, {})


class TestCommand:
    """Exit codes and names."""

    def made(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *results: Result | Exception) -> None:
        """Replace the benchmarks by b0, b1, … with these outcomes."""

        def benchmark(number: int, outcome: Result | Exception) -> Benchmark:
            def run(_load: LoadGenerators, _settings: Settings) -> list[Result]:
                if isinstance(outcome, Exception):
                    raise outcome
                return [outcome]

            return Benchmark(f"b{number}", "about", 1, run)

        made = [benchmark(number, outcome) for number, outcome in enumerate(results)]
        monkeypatch.setattr(program, "CASES", {each.name: each for each in made})
        monkeypatch.chdir(tmp_path)

    def test_unknown_name_is_a_usage_error_with_the_known_names(self) -> None:
        told = CliRunner().invoke(program.bench, ["mqtt-inn"])
        assert told.exit_code == 2
        assert "no benchmark called mqtt-inn" in told.output
        assert "mqtt-through" in told.output

    def test_help_shows_the_command_as_called(self) -> None:
        told = subprocess.run(
            [sys.executable, "-P", "-m", "tests.bench", "--help"],
            env={**os.environ, "WAYPOST_PROGRAM": "../checkout/waypost", "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip
        assert told.startswith("Usage: ../checkout/waypost bench [OPTIONS]")

    def test_zero_rounds_are_a_usage_error(self) -> None:
        assert CliRunner().invoke(program.bench, ["--rounds", "0"]).exit_code == 2

    def test_list_names_every_benchmark(self) -> None:
        told = CliRunner().invoke(program.bench, ["--list"])
        assert told.exit_code == 0
        assert [line.split()[0] for line in told.output.splitlines()] == list(cases.CASES)

    def test_exit_status_is_0_when_met_and_1_when_missed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.made(monkeypatch, tmp_path, RESULTS[0], RESULTS[2])
        assert CliRunner().invoke(program.bench, ["b0"]).exit_code == 0
        told = CliRunner().invoke(program.bench, ["--json", "--plot", "out.svg"])
        assert told.exit_code == 1
        assert [each["name"] for each in json.loads(told.stdout)] == ["amqp-through-rabbitmq", "writes-1000-kept-batch"]
        assert (tmp_path / "out.svg").read_text().startswith("<svg")

    def test_missing_peer_is_skipped_unless_named(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.made(monkeypatch, tmp_path, RESULTS[0], packages.BrokerMissing("it is not there: apt-get install it"))
        told = CliRunner().invoke(program.bench, [])
        assert told.exit_code == 0
        assert "skipped: it is not there: apt-get install it" in told.stderr
        told = CliRunner().invoke(program.bench, ["b1"])
        assert told.exit_code == 3
        assert "apt-get install it" in told.stderr

    def test_failed_load_fails_and_other_results_are_shown(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.made(monkeypatch, tmp_path, LoadFailed("closed by peer"), RESULTS[0])
        told = CliRunner().invoke(program.bench, [])
        assert told.exit_code == 1
        assert "b0: closed by peer" in told.stderr
        assert "123,456" in told.stdout


class TestSpread:
    """The same load over more and more senders."""

    class Site:
        name = "waypost"
        resident_mib = 50.0

        def __enter__(self) -> TestSpread.Site:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    class Peer(Site):
        name = "peer"

    RATES: ClassVar = {
        ("waypost", 10): 60_000.0,
        ("waypost", 50): 45_000.0,
        ("peer", 10): 30_000.0,
        ("peer", 50): 90_000.0,
    }

    def results(self, monkeypatch: pytest.MonkeyPatch, *, peer: bool, least: float) -> list[Result]:
        monkeypatch.setattr(spread, "WaypostBroker", self.Site)
        asked: list[tuple[str, int]] = []

        def measure(_load: LoadGenerators, broker: Any, senders: int) -> float:
            asked.append((broker.name, senders))
            return self.RATES[broker.name, senders]

        each = spread.Spread("each", "about", 1, measure, (10, 50), least, 0.8, self.Peer if peer else None)  # type: ignore[arg-type]
        found = each.benchmark.run(LoadGenerators(Path()), Settings(rounds=2))
        assert len(asked) == 3 * len(self.RATES) // (1 if peer else 2), "and once to get warm"
        return found

    def test_every_figure_has_a_bound_and_a_minimum_of_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        few, many = self.results(monkeypatch, peer=False, least=40_000)
        assert (few.name, few.value, few.met) == ("each 10", 60_000, True)
        assert (many.name, many.value, many.met) == ("each 50", 45_000, False), "0.75 of the first is too little"
        assert many.goal is not None
        assert many.goal.share == pytest.approx(0.75 / 0.8)

    def test_bound_against_a_peer_is_a_ratio(self, monkeypatch: pytest.MonkeyPatch) -> None:
        few, many = self.results(monkeypatch, peer=True, least=1.5)
        assert (few.ratio, few.peer, few.met) == (2.0, "peer", True)
        assert (many.ratio, many.peer_value, many.met) == (0.5, 90_000, False)


class TestPackages:
    """Programs that are not installed."""

    def test_installed_packages_are_not_installed_again(self) -> None:
        assert packages.program("sh", "no-such-package").name == "sh"

    def test_never_installs_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WAYPOST_APT", "never")
        with pytest.raises(packages.BrokerMissing, match="one two"):
            packages.program("no-such-program", "one", "two")
