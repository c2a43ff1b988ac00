"""`waypost store info`: consistent figures, and the time until the store is full."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.message import Run
from edge.appliance.main import run
from edge.appliance.store.figures import StoreFigures, figures_of
from edge.appliance.store.recovery.inspection import Inspection
from edge.broker.store.sqlite import FILE_NAME, open_store
from edge.output.errors import Exit
from tests.contract.store.rig import run_of, sqlite_rig
from tests.support.command import item_in
from tests.support.stores import AT, FORWARDER, QUEUE, SECOND, TOPIC, Made, change, make

NOW = AT / 1e9 + 3600


class TestFigures:
    @pytest.mark.parametrize("crashed", [False, True])
    def test_figures_match_the_store(self, tmp_path: Path, crashed: bool) -> None:
        made = make(tmp_path / "data", crashed=crashed)
        figures = figures_of(made.path, now=NOW)
        assert figures.file_bytes == made.path.stat().st_size
        store = open_store(made.path.parent, post=lambda _: None)
        info = store.info()
        store.close()
        assert (figures.epoch, figures.messages, figures.bytes) == (made.epoch, made.messages, info.bytes)
        assert [(log.name, log.messages, log.bytes) for log in figures.logs] == [
            (log.name, log.next - log.first, log.bytes) for log in info.logs
        ]
        assert [(c.name, c.log, c.backlog_messages) for c in figures.cursors] == [
            ("queue", QUEUE, info.cursors[0].backlog), (FORWARDER, TOPIC, info.cursors[1].backlog)
        ]  # fmt: skip
        assert [(entry.kind, entry.entries, entry.bytes) for entry in figures.state] == [("session", 1, 10)]

    def test_backlog_bytes_follow_the_cursor(self, made: Made) -> None:
        queue, forwarder = figures_of(made.path, now=NOW).cursors
        bodies = sum(len(b'{"n": %d}' % i) for i in range(55, 200))
        assert queue.backlog_messages == 145
        assert abs(queue.backlog_bytes - bodies) < 50
        assert forwarder.backlog_messages == 220 - 11

    def test_written_bytes_continue_over_restarts(self, made: Made) -> None:
        first = figures_of(made.path, now=NOW).wear
        assert first is not None
        with Inspection.open(made.path) as inspection:
            ever = sum(int(str(count)) for (count,) in inspection.query("SELECT next FROM address"))
        assert ever < first.payload_bytes < 100 * ever
        data = made.path.parent
        rig = sqlite_rig(data)
        rig.store.logs.append(rig.store.logs.open(QUEUE), run_of(b"x" * 1000))
        rig.commit()
        rig.store.close()
        then = figures_of(made.path, now=NOW).wear
        assert then is not None
        assert then.payload_bytes == first.payload_bytes + 1000
        change(made.path, "DROP TABLE wear")
        assert figures_of(made.path, now=NOW).wear is None

    def test_ages_are_shown(self, made: Made) -> None:
        queue, topic = figures_of(made.path, now=NOW).logs
        assert queue.oldest_age_s == pytest.approx(3600 - 5)
        assert topic.oldest_age_s == pytest.approx(3600)

    def test_addresses_are_sorted_by_their_messages(self, made: Made) -> None:
        figures = figures_of(made.path, now=NOW)
        assert figures.addresses == 8
        first = figures.largest_addresses[0]
        assert (first.name, first.messages) == ("jobs", 200)


class TestRoom:
    """A store that takes 100 kB every 10 s of its machine's clock."""

    def make(self, data: Path, commits: int, oldest_s: float) -> StoreFigures:
        rig = sqlite_rig(data)
        log = rig.store.logs.open("queue q")
        rig.store.cursors.open("queue", log, 0)
        for _ in range(commits):
            rig.store.logs.append(log, Run("q", "d", 1, b"", [bytes(100_000)], AT))
            rig.now += 10
            assert rig.store.commits.flush()
            while rig.store.commits.committing:
                rig.turn()
        now = rig.now
        rig.store.close()
        return figures_of(data / FILE_NAME, now=AT / 1e9 + oldest_s, monotonic=lambda: now, free_bytes=1_000_000_000)

    def test_autonomy_is_free_space_by_arrival_rate(self, tmp_path: Path) -> None:
        room = self.make(tmp_path, 61, 600).room
        assert room.bytes_per_hour == pytest.approx(36_000_000, rel=0.03)
        assert room.hours_of_autonomy == pytest.approx(27.8, rel=0.03)

    def test_store_is_full_at_the_rate_of_the_backlog(self, tmp_path: Path) -> None:
        room = self.make(tmp_path, 60, 2 * 600).room
        assert room.hours_to_full == pytest.approx(1e9 / (6_000_000 / (1200 / 3600)), rel=0.01)

    def test_messages_in_flight_do_not_fill_it(self, tmp_path: Path) -> None:
        room = self.make(tmp_path, 5, 5).room
        assert room.hours_to_full is None
        assert room.hours_of_autonomy is not None

    def test_single_commit_gives_no_rate(self, tmp_path: Path) -> None:
        room = self.make(tmp_path, 1, 5).room
        assert (room.bytes_per_hour, room.hours_of_autonomy) == (None, None)


class TestCommand:
    def test_json_is_complete(self, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["store", "info", "--data", str(made.path.parent), "--json"]) == 0
        document = item_in(capsys.readouterr().out)
        assert document["epoch"] == made.epoch
        assert document["running"] is False
        assert {log["name"] for log in document["logs"]} == {QUEUE, TOPIC}
        assert document["room"]["free_bytes"] > 0

    def test_text_fits_eighty_columns(self, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["store", "info", "--data", str(made.path.parent)]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        assert "\x1b" not in out
        for word in (made.epoch, "stopped", QUEUE, FORWARDER, "plant/6/temp", "session", "not acknowledged", "room"):
            assert word in out

    def test_long_names_are_folded_not_cut(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rig = sqlite_rig(tmp_path)
        rig.store.logs.open("queue " + "[bold]x/" * 30)
        rig.commit()
        rig.store.close()
        assert run(["store", "info", "--data", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        assert out.replace("\n", "").replace(" ", "").count("[bold]x/") == 30

    def test_running_gateway_is_reported(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rig = sqlite_rig(tmp_path)
        rig.store.logs.append(rig.store.logs.open("queue q"), Run("q", "d", 1, b"", [b"x"], AT + SECOND))
        rig.commit()
        assert run(["store", "info", "--data", str(tmp_path), "--json"]) == 0
        document = item_in(capsys.readouterr().out)
        assert document["running"] is True
        rig.store.close()

    def test_missing_store_is_reported(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for data in (tmp_path, tmp_path / "none"):
            assert run(["store", "info", "--data", str(data)]) == Exit.USAGE
            assert "no store at" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    def test_foreign_file_is_reported(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / FILE_NAME).write_bytes(b"x" * 5000)
        assert run(["store", "info", "--data", str(tmp_path)]) == Exit.INTEGRITY
        assert "waypost store verify" in capsys.readouterr().err


class TestVerify:
    def test_sound_store_passes(self, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["store", "verify", "--data", str(made.path.parent)]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "ok"

    @pytest.mark.parametrize("more", [[], ["--json"], ["--quick"]])
    def test_damaged_store_fails(self, made: Made, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        change(made.path, "UPDATE cursor SET position = 900")
        with pytest.raises(SystemExit) as ended:
            run(["store", "verify", "--data", str(made.path.parent), *more])
        assert ended.value.code == Exit.INTEGRITY
        out = capsys.readouterr().out
        if "--json" in more:
            document = item_in(out)
            assert document["damaged"] is True
            assert [finding["code"] for finding in document["findings"]] == ["cursor-beyond", "cursor-beyond"]
        else:
            assert "beyond the end of its log" in out
            assert "waypost store repair" in out


@pytest.mark.parametrize("columns", ["60", "100", "", "0", "wide"])
def test_output_follows_columns(
    made: Made, columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """COLUMNS sets the width in a pipe too, which has none of its own."""
    monkeypatch.setenv("COLUMNS", columns)
    for command in ("store info", "doctor"):
        run([*command.split(), "--data", str(made.path.parent)])
        longest = max(map(len, capsys.readouterr().out.splitlines()))
        widest = {"60": 60, "100": 100}.get(columns, 80)
        assert widest - 20 < longest <= widest, command
