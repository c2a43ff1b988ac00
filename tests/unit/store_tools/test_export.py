"""`waypost store export`: the chosen messages, completely, byte for byte, in each format."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.amqp_values import encode
from bridge.message import AMQP, Run, Stored
from edge.appliance.main import run
from edge.appliance.store.records import Recorder, parse
from edge.appliance.store.selection import moment
from edge.broker.store.epochs import Epochs
from edge.broker.store.errors import StoreError
from edge.output.errors import Exit
from tests.contract.store.rig import sqlite_rig
from tests.support.command import item_in
from tests.support.stores import AT, FORWARDER, QUEUE, SECOND, Made, rot


def exported(made: Made, tmp_path: Path, *options: str) -> list[dict[str, object]]:
    out = tmp_path / "out.ndjson"
    assert run(["store", "export", "--data", str(made.path.parent), "--out", str(out), *options]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


class TestSelection:
    def test_complete_store_is_exported(self, made: Made, tmp_path: Path) -> None:
        lines = exported(made, tmp_path)
        assert len(lines) == made.messages
        names = {(line["epoch"], line["address"], line["sequence"]) for line in lines}
        assert len(names) == made.messages
        assert {line["epoch"] for line in lines} == {made.epoch}
        jobs = [line for line in lines if line["address"] == "jobs"]
        assert [line["sequence"] for line in jobs] == [line["position"] for line in jobs] == list(range(50, 200))
        assert [line["json"] for line in jobs] == [{"n": n} for n in range(50, 200)]

    @pytest.mark.parametrize(
        ("options", "count"),
        [
            (["--log", QUEUE], 150),
            (["--address", "plant/+/temp"], 220),
            (["--address", "plant/3/temp"], 33),
            (["--device", "sensor6"], 22),
            (["--device", "nobody"], 0),
            (["--cursor", "queue"], 145),
            (["--cursor", FORWARDER], 209),
            (["--cursor", "queue", "--address", "plant/#"], 0),
            (["--since", "2026-09-21T14:13:30Z"], 10 * 21),
            (["--since", "2026-09-21T14:13:30", "--until", "2026-09-21T16:13:31+02:00"], 21),
        ],
    )
    def test_selected_messages_are_exported(self, made: Made, tmp_path: Path, options: list[str], count: int) -> None:
        assert len(exported(made, tmp_path, *options)) == count

    def test_cursor_excludes_acknowledged_messages_within_a_run(self, made: Made, tmp_path: Path) -> None:
        positions = {line["position"] for line in exported(made, tmp_path, "--cursor", FORWARDER)}
        assert positions == set(range(220)) - set(range(30, 41))

    def test_ages_are_selected(self) -> None:
        now = AT / 1e9
        assert moment("90s", now) == AT - 90 * SECOND
        assert moment("2h", now) == moment("120m", now)
        with pytest.raises(ValueError, match="neither an age"):
            moment("yesterday", now)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--since", "soon"], "neither an age"),
            (["--address", "a/#/b"], "#"),
            (["--out", "x.xlsx"], "--format"),
            (["--format", "parquet"], "--out"),
        ],
    )
    def test_usage_errors_are_reported(
        self, made: Made, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(["store", "export", "--data", str(made.path.parent), *options]) == Exit.USAGE
        assert said in capsys.readouterr().err

    def test_unknown_name_is_reported_with_the_known_ones(self, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
        for option in ("--log", "--cursor"):
            assert run(["store", "export", "--data", str(made.path.parent), option, "x"]) == Exit.FAILED
            assert "queue" in capsys.readouterr().err


class TestFormats:
    def test_dash_is_stdout(
        self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert run(["store", "export", "--data", str(made.path.parent), "--out", "-"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == made.messages
        assert not (tmp_path / "-").exists()

    def test_csv_is_written(self, made: Made, tmp_path: Path) -> None:
        out = tmp_path / "out.csv"
        assert run(["store", "export", "--data", str(made.path.parent), "--out", str(out)]) == 0
        rows = list(csv.DictReader(io.StringIO(out.read_text())))
        assert len(rows) == made.messages
        assert rows[0]["body_text"] == '{"n": 50}'
        assert rows[0]["received_at"] == "2026-09-21T14:13:25.000000Z"
        assert {row["body"] for row in rows if row["address"] == "plant/0/temp"} == {"", "/wA="}

    def test_parquet_is_written(self, made: Made, tmp_path: Path) -> None:
        out = tmp_path / "out.parquet"
        assert run(["store", "export", "--data", str(made.path.parent), "--out", str(out)]) == 0
        rows = pq.read_table(out).to_pylist()
        assert len(rows) == made.messages
        assert rows[0]["body"] == b'{"n": 50}'
        assert rows[0]["received_at"].timestamp() * 1e9 == AT + 5 * SECOND
        assert [row["body_text"] for row in rows if row["body"] == b"\xff\x00"] == [None] * 20
        assert all(row["clock_good"] == row["address"].startswith("plant") for row in rows)

    def test_missing_pyarrow_is_reported(
        self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        out = tmp_path / "out.parquet"
        assert run(["store", "export", "--data", str(made.path.parent), "--out", str(out)]) == Exit.USAGE
        assert "pip install pyarrow" in capsys.readouterr().err
        assert list(tmp_path.glob("out*")) == []

    def test_json_reports_the_written_messages(
        self, made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "out.csv"
        assert run(["store", "export", "--data", str(made.path.parent), "--out", str(out), "--json"]) == 0
        document = item_in(capsys.readouterr().out)
        assert (document["messages"], document["format"]) == (made.messages, "csv")

    def test_file_is_private(self, made: Made, tmp_path: Path) -> None:
        exported(made, tmp_path)
        assert (tmp_path / "out.ndjson").stat().st_mode & 0o077 == 0


class TestRecords:
    @given(
        body=st.one_of(
            st.binary(), st.text().map(str.encode),
            st.recursive(
                st.none() | st.integers() | st.floats() | st.text(),
                lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            ).map(lambda value: json.dumps(value).encode()),
        ),
        amqp=st.booleans(), properties=st.binary(max_size=5),
    )  # fmt: skip
    def test_body_survives_unchanged(self, body: bytes, amqp: bool, properties: bytes) -> None:
        run_ = Run("a/b", "d", AMQP if amqp else 1, properties, [body], AT)
        [record] = Recorder(Epochs("e" * 32)).records("log", Stored(5, 7, run_))
        line = msgspec.json.encode(record)
        assert b"\n" not in line
        assert parse(line, 1).body == body

    def test_payload_of_an_amqp_message_is_shown(self) -> None:
        message = b"\x00\x53\x77" + encode("21.5")
        [record] = Recorder(Epochs("e")).records("log", Stored(0, 0, Run("a", "d", AMQP, b"", [message], AT)))
        assert record.text == "21.5"
        assert record.body == message

    def test_invalid_lines_raise(self) -> None:
        for line in (b"", b"{", b"[]", b'{"epoch": "e", "address": "a", "sequence": 0}', b'{"base64": 5}',
                     b'{"epoch": "e", "address": "a", "sequence": 0, "base64": "?"}'):  # fmt: skip
            with pytest.raises(StoreError, match="line 3: "):
                parse(line, 3)


def test_damaged_segment_is_skipped_and_reported(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rot(made.path, 1, 100)
    out = tmp_path / "out.ndjson"
    assert run(["store", "export", "--data", str(made.path.parent), "--out", str(out)]) == Exit.INTEGRITY
    assert len(out.read_text().splitlines()) == made.messages - 10
    assert "left out: 10 messages in 1 damaged segment" in capsys.readouterr().err


def test_closed_pipe_ends_quietly(made: Made) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        for form in ("ndjson", "csv"):
            done = subprocess.run(
                [sys.executable, "-m", "edge.appliance.main", "store", "export", "--data", str(made.path.parent),
                 "--format", form], stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.stderr == ""


MEASURED = """
import os, sys
from edge.appliance.main import run
from tests.support.processes import resident_mib

def all_of(data):
    run(["store", "verify", "--data", data])
    for form in ("ndjson", "csv", "parquet"):
        assert run(["store", "export", "--data", data, "--out", f"{data}/out.{form}"]) == 0

all_of(sys.argv[1])
before = resident_mib(os.getpid())
all_of(sys.argv[2])
print(resident_mib(os.getpid()) - before)
"""
GROWTH_MIB_MAX = 24
"""Measured growth: 5 MiB, while three exports of the store process 100 MB of bodies."""


def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    for name, commits in (("small", 10), ("large", 50)):
        rig = sqlite_rig(tmp_path / name)
        log = rig.store.logs.open("queue big")
        rig.store.cursors.open("queue", log, 0)
        for i in range(commits):
            rig.store.logs.append(log, Run("big", "d", 1, b"", [b"%02000d" % (i * 1000 + j) for j in range(1000)], AT))
            rig.commit()
        rig.store.close()
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path / "small"), str(tmp_path / "large")],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    assert float(done.stdout.splitlines()[-1]) < GROWTH_MIB_MAX
    assert (tmp_path / "large" / "out.ndjson").read_bytes().count(b"\n") == 50_000
    assert pq.read_metadata(tmp_path / "large" / "out.parquet").num_rows == 50_000
