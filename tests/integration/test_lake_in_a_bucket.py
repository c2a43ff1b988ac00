"""A lake on an object store: the same hub, the same proof, and errors when the store breaks its contract."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloud.lake import compaction, tables
from cloud.lake.entries import fence_entry
from cloud.lake.lake import TransactionId
from cloud.lake.rows import record_rows
from cloud.lake.tables import LakeTable
from cloud.place.bucket import Bucket
from cloud.place.faults import ObjectStoreError, explain_error
from cloud.place.options import BucketCredentials, InvalidOptions, from_environment, read_credentials
from cloud.place.place import parse, place_of_table
from cloud.proof.proof import prove
from spark.cli import analytics
from tests.support.command import error_of, invoke
from tests.support.cut_link import CutLink
from tests.support.http_client import ask
from tests.support.lake import manifests_asked_for
from tests.support.processes import edge, free_port, hub, landing_soon, wait_until
from tests.support.publisher import Publisher
from tests.support.put_gate import PutGate
from tests.support.s3 import BUCKET, KEYS, ObjectStore
from tests.support.uplink import backlog

FILES = 8
NOW_US = 1_795_250_665_237_123


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path_factory.mktemp("store") / "store.log") as running:
        yield running


@pytest.fixture
def lake(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Bucket:
    """Yield an empty prefix in the bucket for each test."""
    for name, value in store.environment().items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    place = parse(f"s3a://{BUCKET}/{request.node.name}")
    assert isinstance(place, Bucket)
    return place


def state(number: int) -> pa.Table:
    row = {"tenant": "default", "gateway": f"gw{number}", "reported_at": NOW_US, "state": "running"}
    return record_rows("gateway_status", [row], NOW_US)


class TestPlace:
    def test_object_is_put_once(self, lake: Bucket) -> None:
        assert lake.put_new("t/one", b"first")
        assert not lake.put_new("t/one", b"second")
        assert (lake.read("t/one"), lake.size("t/one"), lake.read("t/two"), lake.size("t/two")) == (
            b"first",
            5,
            None,
            None,
        )
        assert lake.names("t") == ["one"]
        lake.delete("t/one")
        lake.delete("t/one")
        assert lake.names("t") == []

    def test_unfinished_object_does_not_exist(self, lake: Bucket) -> None:
        with contextlib.suppress(InterruptedError), lake.create("half") as file:
            file.write(b"some")
            raise InterruptedError
        assert lake.size("half") is None
        with lake.create("whole") as file:
            file.write(b"all of it")
        assert lake.read("whole") == b"all of it"
        with pytest.raises(FileExistsError), lake.create("whole"):
            pass

    def test_part_of_an_object_is_read(self, lake: Bucket) -> None:
        rows = pa.table({"number": list(range(200_000))})
        with lake.create("some.parquet") as file:
            pq.write_table(rows, file, write_page_checksum=True)
        with pq.ParquetFile(lake.source("some.parquet"), page_checksum_verification=True) as opened:
            assert opened.read() == rows
        with pytest.raises(FileNotFoundError):
            lake.source("other.parquet")

    def test_check_writes_and_removes_a_probe(self, lake: Bucket) -> None:
        lake.check()
        assert lake.names("_probe") == []
        with pytest.raises(ObjectStoreError):
            parse("s3://nowhere/lake").check()


class TestTable:
    def test_rows_are_appended_found_and_compacted(self, lake: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (tables, compaction):
            monkeypatch.setattr(module, "COMPACTED_FILES_MIN", FILES)
        table = LakeTable.open(lake, "gateway_status")
        for number in range(FILES):
            assert table.append(state(number), TransactionId("app", number + 1)) == number + 1
        assert lake.tables() == ["gateway_status"]
        again = LakeTable.open(lake, "gateway_status")
        assert (again.committed("app"), again.committed("other")) == (FILES, None)
        assert again.compact() == FILES
        found = lake.at("gateway_status").delta()
        assert (len(found.file_uris()), found.count()) == (1, FILES)
        assert place_of_table(found) == lake.at("gateway_status")
        # The other writer has not seen that version yet, and commits the next one.
        assert table.append(state(FILES), TransactionId("app", FILES + 1)) == found.version() + 1
        gateways = [
            name for rows in again.read(["gateway"], {"gateway": "gw7"}) for name in rows["gateway"].to_pylist()
        ]
        assert gateways == ["gw7"]

    def test_settling_reads_the_log_once(self, store: ObjectStore, lake: Bucket) -> None:
        """Gateways wait for it when they change the hub: it took 97 requests, five times the whole log."""
        table, other = (LakeTable.open(lake, "gateway_status") for _ in range(2))
        for number in range(FILES):
            table.append(state(number), TransactionId("app", number + 1))
        assert other.settled(TransactionId("app", FILES))
        begin = len(store.requests())
        assert not other.settled(TransactionId("late", 1))
        assert len(store.requests()) - begin <= 8
        assert not table.settled(TransactionId("late", 2))
        table.append(state(FILES), TransactionId("app", FILES + 1))
        begin = len(store.requests())
        assert not table.settled(TransactionId("late", 3))
        assert len(store.requests()) - begin <= 10
        assert other.append(state(0), TransactionId("own", 1)) == table.version + 1

    def test_stale_entry_is_not_read(self, lake: Bucket) -> None:
        """The entry after the last known one was deleted, and its number taken by a writer that stood still."""
        table = LakeTable.open(lake, "gateway_status")
        assert table.append(state(0), TransactionId("app", 1)) == 1
        other = LakeTable.open(lake, "gateway_status")
        assert other.committed("app") == 1
        for number in range(2):
            table.append(state(number), TransactionId("app", number + 2))
        lake.at("gateway_status").delta().create_checkpoint()
        for version in range(3):
            lake.delete(f"gateway_status/_delta_log/{version:020}.json")
        lake.put_new(f"gateway_status/_delta_log/{2:020}.json", fence_entry({TransactionId("app", 9): 9}))
        assert other.committed("app") == 3
        assert other.settled(TransactionId("app", 3))

    def test_put_answered_with_an_error_counts_when_it_was_done(
        self, store: ObjectStore, lake: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The client retries by itself and is refused; the entry that it then finds is its own."""
        for module in (tables, compaction):
            monkeypatch.setattr(module, "COMPACTED_FILES_MIN", 2)
        with PutGate(store.port) as gate:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{gate.port}")
            gate.fail_answer_to_put_of("")
            parse(lake.uri).check()
            table = LakeTable.open(parse(lake.uri), "gateway_status")
            for number in range(2):
                gate.fail_answer_to_put_of(".parquet")
                table.append(state(number), TransactionId("app", number + 1))
            gate.fail_answer_to_put_of(f"{3:020}.json")
            assert table.compact() == 2
        found = lake.at("gateway_status").delta()
        assert (len(found.file_uris()), found.to_pyarrow_table().num_rows) == (1, 2)

    def test_commit_that_arrives_too_late_is_refused(self, lake: Bucket) -> None:
        """An entry that arrives after the next hub has looked is refused."""
        table = LakeTable.open(lake, "gateway_status")
        assert not table.settled(TransactionId("app", 1))
        assert not lake.put_new(f"gateway_status/_delta_log/{1:020}.json", b'{"txn":{"appId":"app","version":1}}\n')
        assert table.append(state(2), TransactionId("app", 2)) == 2

    def test_two_writers_commit_different_versions(self, lake: Bucket) -> None:
        one, other = LakeTable.open(lake, "ledger"), LakeTable.open(lake, "ledger")
        assert one.version == other.version
        assert lake.put_new(f"ledger/_delta_log/{one.version + 1:020}.json", b"{}\n")
        assert not lake.put_new(f"ledger/_delta_log/{one.version + 1:020}.json", b"{}\n")


class TestRefused:
    """The error is one line with the cause and the next step, without a key."""

    def refused(self, tmp_path: Path, place: str, environment: dict[str, str]) -> str:
        listeners = ("--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0")
        command = ("hub", "run", "--data", str(tmp_path / "hub"), "--dev", *listeners, "--lake", place)
        error = error_of(*command, code=2, environment=environment)
        assert KEYS["AWS_SECRET_ACCESS_KEY"] not in error
        return error

    def test_missing_bucket_is_named(self, store: ObjectStore, tmp_path: Path) -> None:
        assert "the bucket does not exist" in self.refused(tmp_path, "s3://elsewhere/lake", store.environment())

    def test_store_that_does_not_answer_is_named(self, store: ObjectStore, tmp_path: Path) -> None:
        said = self.refused(tmp_path, f"s3://{BUCKET}/lake", store.environment(free_port()))
        assert "the store does not answer" in said

    @pytest.mark.parametrize(
        ("place", "expected"),
        [
            ("gs://fleet/lake", "a lake must be a folder, or s3://BUCKET/FOLDER"),
            ("s3:///lake", "s3://BUCKET"),
            ("s3://a@b/c", "s3://BUCKET"),
        ],
    )
    def test_invalid_name_is_refused(self, place: str, expected: str) -> None:
        with pytest.raises(InvalidOptions, match=expected):
            parse(place)

    @pytest.mark.parametrize(
        ("said", "expected"),
        [
            ("Generic S3 error: 403 Forbidden: <Code>RequestTimeTooSkewed</Code>", "clock differs"),
            ("Generic S3 error: 403 Forbidden: <Code>SignatureDoesNotMatch</Code>", "does not match the access key"),
            ("Generic S3 error: 403 Forbidden: <Code>AccessDenied</Code>", "they need GetObject"),
            (
                "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token",
                "no credentials",
            ),
        ],
    )
    def test_errors_of_a_store_are_explained(self, said: str, expected: str) -> None:
        assert expected in explain_error(said)
        assert explain_error("No such file") == "No such file"


def test_spark_without_an_object_store_client_names_the_command(
    lake: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LakeTable.open(lake, "telemetry")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    done = invoke(analytics, "run", "--lake", lake.uri, "--master", "spark://127.0.0.1:9")
    assert (done.exit_code, "-m spark.setup install s3" in done.output) == (2, True)
    # The probe for conditional writes leaves nothing behind in the store.
    assert lake.names("_probe") == []


class TestOptions:
    def test_options_come_from_the_environment(self) -> None:
        found = from_environment({**KEYS, "AWS_ENDPOINT_URL": "http://store:9000/"})
        assert (found.endpoint, found.plain, found.region) == ("http://store:9000", True, "us-east-1")
        assert KEYS["AWS_SECRET_ACCESS_KEY"] not in repr(found)
        with pytest.raises(InvalidOptions, match="AWS_SECRET_ACCESS_KEY"):
            from_environment({"AWS_ACCESS_KEY_ID": "a"})
        with pytest.raises(InvalidOptions, match="https://HOST:PORT"):
            from_environment({"AWS_ENDPOINT_URL": "store:9000"})

    def test_credentials_come_from_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "credentials"
        file.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n[other]\naws_access_key_id = c\n")
        assert from_environment({"AWS_SHARED_CREDENTIALS_FILE": str(file)}).credentials == BucketCredentials("a", "b")
        with pytest.raises(InvalidOptions, match=r"\[other\] needs"):
            read_credentials(file, "other")
        with pytest.raises(InvalidOptions, match="no profile"):
            read_credentials(file, "third")
        file.write_text("s3cret")
        with pytest.raises(InvalidOptions, match="expected sections") as refused:
            read_credentials(file)
        assert "s3cret" not in str(refused.value)


@pytest.mark.timeout(300)
def test_a_kill_and_a_cut_leave_each_acknowledged_message_in_the_lake_once(
    store: ObjectStore, lake: Bucket, tmp_path: Path
) -> None:
    mqtt, amqp = free_port(), free_port()
    with CutLink(store.port) as link:
        the_hub = hub(tmp_path, f"--amqp=127.0.0.1:{amqp}", f"--lake={lake.uri}", *landing_soon(tmp_path))
        the_hub.environment = store.environment(link.port)
        uplink = [f"--hub=amqp://127.0.0.1:{amqp}", "--gateway=gw1", "--forward=load/#"]
        gateway = edge(tmp_path, "gw1", f"--mqtt=127.0.0.1:{mqtt}", *uplink)
        with the_hub, gateway:
            publisher = Publisher("p", mqtt, "load/1")
            publisher.start()
            wait_until(lambda: len(publisher.acked) > 20, timeout_s=60, what="there is load")
            the_hub.kill()
            the_hub.start()
            link.down(True)
            wait_until(
                lambda: b"the store does not answer" in ask(the_hub, "GET", "/healthz").body,
                timeout_s=100,
                what="the problem is reported",
            )
            link.down(False)
            publisher.end()
            wait_until(lambda: backlog(gateway) == 0, timeout_s=100, what="the backlog has drained", every_s=0.2)
            wait_until(lambda: manifests_asked_for(tmp_path / "gw1"), timeout_s=30, what="manifests are asked for")
            assert gateway.stop() == 0
            gateway.start()
            wait_until(lambda: stated(lake), timeout_s=60, what="all is stated", every_s=0.5)
            assert gateway.stop() == 0
            assert the_hub.stop() == 0
    bodies = Counter(lake.at("telemetry").delta().to_pyarrow_table(columns=["body"])["body"].to_pylist())
    assert set(publisher.acked) <= set(bodies)
    assert max(bodies.values()) == 1
    assert prove(lake).complete
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in (tmp_path / "hub.log").read_text()
    assert not (tmp_path / "hub" / "lake").exists()


def stated(lake: Bucket) -> bool:
    totals = prove(lake).totals
    return len(totals) == 1 and not any(total.unstated for total in totals)
