"""Commands of `waypost lake` as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark import class_archive, cli, session
from spark.cli import analytics, report
from spark.jobs import catalog, pass_lock, runner
from spark.jobs.runner import JobStatus
from spark.lake import SparkLake
from tests.spark import gold, lakes
from tests.spark.lakes import START, message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def invoke(*arguments: object) -> tuple[int, str]:
    words = [str(argument) for argument in arguments]
    command, rest = (report, words[1:]) if words[:1] == ["report"] else (analytics, words)
    result = CliRunner().invoke(command, rest)
    return result.exit_code, result.output


def landed(root: Path) -> Path:
    """Create a lake with one message for the next pass."""
    lakes.write(root, "telemetry", [message(0)])
    return root


def starts_not(*_: object) -> SparkSession:
    raise session.SparkNotStarted("Spark did not start: no memory")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Create the parts of a lake that a command checks before it starts."""
    (tmp_path / "lake" / "telemetry" / "_delta_log").mkdir(parents=True)
    return tmp_path / "lake"


class TestUsage:
    def test_no_lake(self, tmp_path: Path) -> None:
        code, output = invoke("run", "--lake", tmp_path / "none")
        assert code == 2
        assert "is not a lake" in output

    def test_a_folder_of_something_else_is_left_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "holiday.txt").write_text("photos")
        for arguments in (("run",), ("report", "--out", tmp_path / "r.html")):
            code, output = invoke(*arguments, "--lake", tmp_path)
            assert code == 2
            assert "is not a lake: it has no table `telemetry`" in output
        assert [path.name for path in tmp_path.iterdir()] == ["holiday.txt"]

    def test_the_data_directory_instead_of_the_lake(self, tmp_path: Path) -> None:
        (tmp_path / "lake" / "telemetry" / "_delta_log").mkdir(parents=True)
        code, output = invoke("report", "--lake", tmp_path, "--out", tmp_path / "r.html")
        assert code == 2
        assert "its lake is" in output

    def test_unknown_job(self, lake: Path) -> None:
        code, output = invoke("run", "--lake", lake, "--job", "dreams")
        assert code == 2
        assert "no job named 'dreams'" in output

    def test_bad_setting(self, lake: Path) -> None:
        assert invoke("run", "--lake", lake, "--conf", "nonsense")[0] == 2

    def test_a_secret_in_a_setting(self, lake: Path) -> None:
        for name in (
            "hadoop.fs.s3a.secret.key",
            "hadoop.fs.s3a.session.token",
            "authenticate.secret",
            "ssl.keyPassword",
        ):
            code, output = invoke("run", "--lake", lake, "--conf", f"spark.{name}=abc")
            assert (code, "AWS_SECRET_ACCESS_KEY" in output, "abc" in output) == (2, True, False), name

    def test_a_second_pass_is_refused_while_one_runs(self, lake: Path) -> None:
        with pass_lock.hold(lake):
            for command in ("run", "rebuild"):
                code, output = invoke(command, "--lake", lake)
                assert code == 1
                assert f"another pass over {lake} is running (process {os.getpid()})" in output
                assert "Wait until it has ended, or stop it" in output
        with pass_lock.hold(lake):
            pass

    def test_a_stale_class_archive_is_said_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(class_archive, "stale_notice", lambda home: f"made before {home.major}, make it anew")
        monkeypatch.setattr(session, "start", starts_not)
        _, output = invoke("run", "--lake", landed(tmp_path))
        assert output.count("note: made before ") == 1

    def test_a_replay_without_a_session_says_why(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(session, "start", starts_not)
        code, output = invoke("replay", "--lake", landed(tmp_path), "--master", "spark://cluster:7077")
        assert (code, output) == (1, "error: Spark did not start: no memory\n")

    @pytest.mark.spark
    @pytest.mark.timeout(300)
    def test_spark_starts_for_a_job_that_finds_something_new_only_and_a_failed_start_is_reported_once(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lakes.write(tmp_path, "telemetry", [message(0)])
        chosen = ("messages", "gaps")
        command = ("run", "--lake", tmp_path, *(word for name in chosen for word in ("--job", name)))
        runner.run_pass(SparkLake(spark, tmp_path), catalog.select(chosen), lambda _: None)
        starts: list[int] = []

        def start(*_: object) -> SparkSession:
            starts.append(1)
            return starts_not()

        monkeypatch.setattr(session, "start", start)
        code, output = invoke(*command)
        assert (code, len(starts), output.count(" done ")) == (0, 0, 2), output
        lakes.write(tmp_path, "ledger", [lakes.ledger(1, 1)])
        lakes.write(tmp_path, "gateway_status", [lakes.status(START, 0)])
        code, output = invoke(*command)
        assert (code, len(starts), output.count("error: Spark did not start: no memory")) == (1, 1, 1)
        assert "gaps        failed" in output
        assert output.count(" done ") == 1

    def test_bad_facts(self, lake: Path, tmp_path: Path) -> None:
        (tmp_path / "facts.json").write_text("[]")
        code, output = invoke("report", "--lake", lake, "--out", tmp_path / "r", "--facts", tmp_path / "facts.json")
        assert code == 2
        assert "facts.json" in output

    def test_a_report_before_the_first_run_says_what_to_do(self, tmp_path: Path) -> None:
        root = tmp_path / "a lake"
        lakes.write(root, "telemetry", [message(0)])
        program = click.Group("waypost", {"report": report})
        arguments = ["report", "--lake", str(root), "--out", str(tmp_path / "r.html")]
        result = CliRunner().invoke(program, arguments, prog_name="./waypost")
        assert result.exit_code == 0
        assert "no job has run" in result.stderr
        assert f"`./waypost lake run --lake '{root}'`" in result.stderr
        assert "no job has run" in (tmp_path / "r.html").read_text()

    def test_the_page_of_a_gateway_a_folder_and_the_numbers(self, tmp_path: Path) -> None:
        gold.fleet(tmp_path / "lake", 3)
        lake, site = tmp_path / "lake", tmp_path / "site"
        code, output = invoke("report", "--lake", lake, "--gateway", "gw00001", "--out", tmp_path / "g.html")
        assert (code, "KB)" in output) == (0, True), output
        assert "Gateway gw00001" in (tmp_path / "g.html").read_text()
        code, output = invoke("report", "--lake", lake, "--out", f"{site}/")
        assert (code, "4 pages" in output) == (0, True)
        assert len(list((site / "gateways").iterdir())) == 3
        result = CliRunner().invoke(report, ["--lake", str(lake), "--json"])
        assert json.loads(result.stdout)["accounts"]["balance"]["unexplained"] == 7

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ([], "give --out FILE.html, or --json"),
            (["--out", ""], "give --out FILE.html, or --json"),
            (["--out", "", "--json"], "give --out FILE.html, or --json"),
            (["--out", "-", "--json"], "cannot both go to standard output"),
            (["--json", "--gateway", "none"], "no gateway named 'none' is known: run `waypost lake run`"),
            (["--out", "site/", "--gateway", "gw1"], "leave out --gateway"),
        ],
    )
    def test_what_a_report_cannot_be_made_of(self, tmp_path: Path, arguments: list[str], says: str) -> None:
        lakes.write(tmp_path, "telemetry", [message(0)])
        code, output = invoke("report", "--lake", tmp_path, *arguments)
        assert (code, says in output) == (2, True)

    def test_a_lake_that_cannot_be_read(self, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RUST_BACKTRACE", "1")
        (lake / "telemetry" / "_delta_log" / f"{0:020}.json").write_text("half a li")
        code, output = invoke("report", "--lake", lake, "--out", tmp_path / "r.html")
        assert code == 4
        assert "table telemetry cannot be read: " in output.lower()
        assert ". Start the hub, which removes a torn end of its log" in output
        assert "<unknown>" not in output, "no frames of a stack"
        assert "Start the hub" in (tmp_path / "r.html").read_text()
        assert invoke("verify", "--lake", lake)[0] == 4
        assert runner.estimate_load(lake) == "large", "that it cannot be read is for the jobs to say"

    @pytest.mark.parametrize("table", ["rollup_1m", "gateway_freshness", "completeness"])
    @pytest.mark.parametrize("harm", ["half an entry", "an empty entry", "a truncated file", "a file less"])
    def test_a_page_without_the_table_that_is_damaged(self, tmp_path: Path, table: str, harm: str) -> None:
        gold.fleet(tmp_path / "lake", 3)
        lake, out = tmp_path / "lake", tmp_path / "r.html"
        newest = max((lake / table / "_delta_log").glob("*.json"))
        (file, *_) = deltalake.DeltaTable(lake / table).file_uris()
        match harm:
            case "half an entry":
                newest.write_bytes(newest.read_bytes()[:150])
            case "an empty entry":
                newest.write_bytes(b"")
            case "a truncated file":
                os.truncate(file.removeprefix("file://"), 50)
            case _:
                Path(file.removeprefix("file://")).unlink()
        result = CliRunner().invoke(report, ["--lake", str(lake), "--out", str(out), "--json"])
        known = json.loads(result.stdout)
        assert (result.exit_code, list(known["unreadable"])) == (4, [table]), result.output
        assert "waypost lake rebuild" in result.stderr
        assert f"able {table}" in out.read_text()
        assert known["tracks" if table == "gateway_freshness" else "members"], "the rest is drawn"

    @pytest.mark.parametrize("harm", ["other bytes", "a truncated file", "a file less"])
    @pytest.mark.parametrize("table", ["quarantine", "gateway_status"])
    def test_a_page_without_the_landed_table_of_which_a_file_is_damaged(
        self, tmp_path: Path, table: str, harm: str
    ) -> None:
        """The hint must not suggest to start the hub, which repairs torn logs: this log is intact."""
        lake, out = tmp_path / "lake", tmp_path / "r.html"
        gold.fleet(lake, 3)
        kept = {"tenant": "default", "gateway": "gw00001", "ingested_at": START, "ingest_date": START.date()}
        unknown = kept | {"link": "l", "reason": "bad", "digest": "-", "content": b"?", "received_at": START}
        row = unknown if table == "quarantine" else lakes.status(START, 3, gateway="gw00001")
        lakes.write(lake, table, [row])
        path = Path(deltalake.DeltaTable(lake / table).file_uris()[-1].removeprefix("file://"))
        match harm:
            case "other bytes":
                path.write_bytes(bytes(path.stat().st_size))
            case "a truncated file":
                os.truncate(path, 50)
            case _:
                path.unlink()
        code, output = invoke("report", "--lake", lake, "--out", out)
        assert (code, f"able {table} cannot be read" in output) == (4, True), output
        assert f"`waypost lake verify` names the damaged files of {table}: restore them from copies" in output
        assert "Start the hub" not in output
        assert "gw00001" in out.read_text(), "the rest is drawn"
        code, output = invoke("verify", "--lake", lake, table)
        assert (code, str(path) in output) == (4, True), output

    @pytest.mark.parametrize(
        ("columns", "says"),
        [
            ({"backlog_messages": ["three"]}, "column backlog_messages is string and should be long"),
            ({}, "it has no column backlog_messages"),
        ],
    )
    def test_a_landed_table_with_other_columns_is_not_the_hubs(
        self, tmp_path: Path, columns: dict[str, list[str]], says: str
    ) -> None:
        lake = tmp_path / "lake"
        gold.fleet(lake, 3)
        table = pa.table({"tenant": ["default"], "gateway": ["gw00001"], "reported_at": [START], **columns})
        deltalake.write_deltalake(lake / "gateway_status", table)
        code, output = invoke("report", "--lake", lake, "--out", tmp_path / "r.html")
        assert code == 4, output
        assert f"{says}. Another program wrote it: restore the table from a copy" in output

    def test_jobs_say_what_to_do_about_a_table_with_other_columns(self, tmp_path: Path) -> None:
        lake = tmp_path / "lake"
        lakes.write(lake, "telemetry", [message(0)])
        rows = deltalake.DeltaTable(lake / "telemetry").to_pyarrow_table()
        wanted = (rows.drop_columns(["body"]), rows.set_column(4, "sequence", [["0"]]))
        for found, why in zip(wanted, ("has no column body", "column sequence is string"), strict=True):
            deltalake.write_deltalake(lake / "telemetry", found, mode="overwrite", schema_mode="overwrite")
            code, output = invoke("run", "--lake", lake, "--job", "messages")
            assert (code, why in output) == (4, True), output
            assert "restore a landed table from a copy; `waypost lake rebuild` rebuilds a derived one" in output

    def test_a_page_without_the_table_in_which_numbers_became_texts(self, tmp_path: Path) -> None:
        """A text column once ended in a traceback, because text takes no thousands separator."""
        lake = tmp_path / "lake"
        gold.fleet(lake, 3)
        waits = {"tenant": ["default"], "gateway": ["gw00001"], "waiting": ["3"]}
        deltalake.write_deltalake(lake / "gateway_backlog", pa.table(waits))
        result = CliRunner().invoke(report, ["--lake", str(lake), "--out", str(tmp_path / "r.html")])
        assert result.exit_code == 4, result.output
        assert "able gateway_backlog cannot be read: column waiting is string and should be long" in result.stderr
        assert "waypost lake rebuild" in result.stderr
        assert "gw00001" in (tmp_path / "r.html").read_text(), "the rest is drawn"

    def test_a_table_of_a_newer_program(self, lake: Path) -> None:
        log = lake / "telemetry" / "_delta_log"
        lakes.write(lake, "telemetry", [message(0)])
        newer = {"protocol": {"minReaderVersion": 9, "minWriterVersion": 9}}
        (log / f"{1:020}.json").write_text(json.dumps(newer))
        code, output = invoke("verify", "--lake", lake)
        assert (code, "A newer program wrote it: use that program" in output, "estore" in output) == (4, True, False)

    def test_schemas_that_cannot_be_read(self, lake: Path) -> None:
        assert invoke("schema", "add", "env/+", "--format", "json", "--lake", lake) == (0, "")
        (lake / "payload_schemas" / "_delta_log" / f"{1:020}.json").write_text("half a li")
        for command in (("list",), ("remove", "env/+"), ("add", "a", "--format", "json")):
            code, output = invoke("schema", *command, "--lake", lake)
            assert (code, "register the schemas again" in output) == (4, True), command

    def test_a_page_to_standard_output(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        lakes.write(tmp_path / "lake", "telemetry", [message(0)])
        done = CliRunner().invoke(report, ["--lake", "lake", "--out", "-"])
        assert (done.exit_code, done.stdout[:15], done.stdout.rstrip()[-7:]) == (0, "<!doctype html>", "</html>")
        assert "no job has run" in done.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["lake"]

    def test_standard_output_that_is_full_is_to_blame_and_not_the_lake(self, tmp_path: Path) -> None:
        lakes.write(tmp_path, "telemetry", [message(0)])
        command = [sys.executable, "-P", "-m", "edge.appliance.main", "report", "--lake", str(tmp_path), "--out", "-"]
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode != 0
        assert f"{tmp_path}: No space left" not in done.stderr

    @pytest.mark.parametrize(("integrity", "code"), [(True, 4), (False, 1)])
    def test_what_ends_many_jobs_is_said_once(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], integrity: bool, code: int
    ) -> None:
        failed = [JobStatus(job, "failed", error="torn log", integrity=integrity) for job in ("messages", "readings")]
        skipped = [JobStatus(job, "skipped", error="not run, as readings failed") for job in ("rollups", "hours")]
        with pytest.raises(SystemExit) as left:
            cli._exit_for([*failed, JobStatus("gaps", "done"), *skipped], tmp_path / "spark.log")
        where = "" if integrity else f" (Spark's log: {tmp_path / 'spark.log'})"
        assert (left.value.code, capsys.readouterr().err.splitlines()) == (
            code,
            [
                f"error: messages, readings: torn log{where}",
                "error: rollups, hours: not run, as readings failed",
            ],
        )

    def test_a_link_that_a_page_is_written_to_stays_one(self, tmp_path: Path) -> None:
        """Run as root, the page once replaced the link /dev/stdout of a redirected output."""
        lakes.write(tmp_path / "lake", "telemetry", [message(0)])
        (tmp_path / "kept.html").touch()
        (tmp_path / "r.html").symlink_to("kept.html")
        assert invoke("report", "--lake", tmp_path / "lake", "--out", tmp_path / "r.html")[0] == 0
        assert (tmp_path / "r.html").is_symlink()
        assert "<!doctype html>" in (tmp_path / "kept.html").read_text()

    def test_a_page_that_cannot_be_written(self, tmp_path: Path) -> None:
        lake = tmp_path / "lake"
        lakes.write(lake, "telemetry", [message(0)])
        (tmp_path / "file").touch()
        assert invoke("report", "--lake", lake, "--out", tmp_path / "file" / "r.html")[0] == 1

    @pytest.mark.parametrize(
        "arguments",
        [
            ("run",),
            ("rebuild",),
            ("replay",),
            ("maintain",),
            ("schema", "add", "a/+", "--format", "text"),
            ("schema", "remove", "a/+"),
        ],
    )
    def test_a_lake_that_this_user_may_not_write(self, lake: Path, arguments: tuple[str, ...]) -> None:
        lake.chmod(0o500)
        powerless = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()
        command = (*powerless, sys.executable, "-P", "-m", "spark.cli", *arguments, "--lake", str(lake))
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2, done.stderr
        assert "must not be written by this user" in done.stderr
        assert "Traceback" not in done.stderr

    def test_set_up_that_was_never_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        lake = landed(tmp_path / "lake")
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        code, output = invoke("run", "--lake", lake)
        assert code == 2
        assert "-m spark.setup install" in output

    @pytest.mark.parametrize("command", [[], ["run"], ["report"]])
    def test_help(self, command: list[str]) -> None:
        assert invoke(*command, "--help")[0] == 0

    def test_help_imports_no_spark(self) -> None:
        program = "import sys, spark.cli; sys.exit('pyspark' in sys.modules or 'deltalake' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--master", "nonsense"], "error: Spark did not start: Master must either be yarn or start with spark"),
        (["--conf", "spark.driver.memory=1x"], "error: Spark did not start: Invalid maximum heap size: -Xmx1x"),
    ],
)
def test_a_session_that_does_not_start_says_why(tmp_path: Path, arguments: list[str], says: str) -> None:
    lake = landed(tmp_path / "lake")
    command = [sys.executable, "-P", "-m", "spark.cli", "run", "--lake", str(lake), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert says in done.stderr
    assert f"(Spark's log: {lake / '_logs' / 'spark.log'})" in done.stderr
    assert "Traceback" not in done.stderr


class TestSchema:
    """`waypost lake schema`, without a JVM."""

    def test_add_list_remove(self, lake: Path) -> None:
        assert invoke("schema", "add", "env/+", "--format", "json", "--unit", "t=Cel", "--lake", lake) == (0, "")
        assert invoke("schema", "add", "stat/#", "--format", "text", "--tenant", "t2", "--lake", lake) == (0, "")
        assert invoke("schema", "list", "--lake", lake) == (0, "env/+  json  t in Cel\nstat/#  text  tenant t2\n")
        assert invoke("schema", "remove", "env/+", "--lake", lake) == (0, "")
        code, output = invoke("schema", "list", "--json", "--lake", lake)
        assert (code, json.loads(output)) == (0, [{"pattern": "stat/#", "format": "text", "tenant": "t2"}])
        assert (lake / "payload_schemas").stat().st_mode & 0o077 == lake.stat().st_mode & 0o077

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("add", "a/#/b", "--format", "json"), "pattern"),
            (("add", "a", "--format", "xml"), "one of json"),
            (("add", "a", "--format", "protobuf"), "descriptor"),
            (("add", "a", "--format", "json", "--unit", "t"), "METRIC=UNIT"),
        ],
    )
    def test_what_cannot_be(self, lake: Path, arguments: tuple[str, ...], said: str) -> None:
        code, output = invoke("schema", *arguments, "--lake", lake)
        assert code == 2
        assert said in output

    def test_none(self, lake: Path) -> None:
        done = CliRunner().invoke(analytics, ["schema", "list", "--lake", str(lake)])
        assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no schema is registered\n")
        done = CliRunner().invoke(analytics, ["schema", "list", "--json", "--lake", str(lake)])
        assert (done.stdout, done.stderr) == ("[]\n", "")

    @pytest.mark.parametrize("pattern", ["a/#/b", "a+", ""])
    def test_a_pattern_that_matches_nothing_is_no_pattern(self, lake: Path, pattern: str) -> None:
        code, output = invoke("replay", "--lake", lake, "--address", pattern)
        assert (code, "--address: pattern" in output) == (2, True)

    def test_no_such_schema(self, lake: Path) -> None:
        code, output = invoke("schema", "remove", "a", "--lake", lake)
        assert code == 1
        assert "no schema is registered for a" in output
