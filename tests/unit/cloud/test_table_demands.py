"""Tables that another engine has changed: what an append of the landing meets, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cloud.lake.delta import DeltaLake
from cloud.lake.faults import LakeError, TableMismatch
from cloud.lake.lake import TransactionId
from cloud.lake.limits import CHECKPOINT_EVERY, COMPACTED_FILES_MIN
from cloud.lake.tables import LakeTable
from tests.support.status_rows import gateways, state

NAME = "gateway_status"
READERS = ("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "variantType", "typeWidening")


def log_of(lake: Path) -> Path:
    return lake / NAME / "_delta_log"


def write_entry(lake: Path, *actions: dict[str, Any]) -> None:
    """Write the next version of the table, as another engine does."""
    version = DeltaTable(lake / NAME).version() + 1
    (log_of(lake) / f"{version:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))


def upgrade(
    lake: Path,
    features: Sequence[str],
    configuration: dict[str, str] | None = None,
    columns: Callable[[list[Any]], None] = lambda _fields: None,
) -> None:
    """Let another engine demand features of the writers of the table."""
    readers = [name for name in features if name in READERS]
    protocol: dict[str, Any] = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
    protocol |= {"writerFeatures": list(features)} | ({"readerFeatures": readers} if readers else {})
    lines = (log_of(lake) / f"{0:020}.json").read_text().splitlines()
    metadata = next(action["metaData"] for action in map(json.loads, lines) if "metaData" in action)
    schema = json.loads(metadata["schemaString"])
    columns(schema["fields"])
    metadata["schemaString"] = json.dumps(schema)
    metadata["configuration"] |= configuration or {}
    write_entry(lake, {"protocol": protocol}, {"metaData": metadata})


def downgrade(lake: Path) -> None:
    """Take every feature back."""
    lines = (log_of(lake) / f"{0:020}.json").read_text().splitlines()
    write_entry(lake, *(action for action in map(json.loads, lines) if "metaData" in action or "protocol" in action))


def with_metadata(key: str, value: object) -> Callable[[list[Any]], None]:
    def change(fields: list[Any]) -> None:
        fields[0]["metadata"][key] = value

    return change


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    LakeTable.open(tmp_path, NAME)
    return tmp_path


@pytest.mark.parametrize(
    "features",
    [
        ("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
        ("columnMapping", "identityColumns"),
        ("deletionVectors",),
        ("timestampNtz", "variantType"),
        ("v2Checkpoint",),
    ],
)
def test_features_that_demand_nothing_of_an_append_are_accepted(lake: Path, features: Sequence[str]) -> None:
    table = LakeTable.open(lake, NAME)
    upgrade(lake, features, {"delta.enableChangeDataFeed": "true"} if "changeDataFeed" in features else None)
    table.append(state(0), TransactionId("hub", 1))
    again = LakeTable.open(lake, NAME)
    assert again.refusal is None
    for number in range(1, max(COMPACTED_FILES_MIN, CHECKPOINT_EVERY)):
        again.append(state(number), TransactionId("hub", number + 1))
    assert again.compact() == COMPACTED_FILES_MIN
    assert again.transactions() == {"hub": COMPACTED_FILES_MIN}
    assert LakeTable.open(lake, NAME).committed("hub") == COMPACTED_FILES_MIN
    assert len(gateways(lake)) == COMPACTED_FILES_MIN


@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_writer_versions_without_a_use_of_their_features_are_accepted(lake: Path, version: int) -> None:
    write_entry(lake, {"protocol": {"minReaderVersion": 2 if version > 4 else 1, "minWriterVersion": version}})
    LakeTable.open(lake, NAME).append(state(1))
    assert gateways(lake) == ["gw1"]


@pytest.mark.parametrize(
    ("feature", "configuration", "columns"),
    [
        ("checkConstraints", {"delta.constraints.early": "reported_at > '1970-01-01'"}, None),
        ("invariants", {}, with_metadata("delta.invariants", '{"expression": {"expression": "gateway > 1"}}')),
        ("generatedColumns", {}, with_metadata("delta.generationExpression", "1")),
        ("identityColumns", {}, with_metadata("delta.identity.start", 1)),
        ("rowTracking", {}, None),
        ("inCommitTimestamp", {}, None),
        ("clustering", {}, None),
        ("a-later-one", {}, None),
    ],
)
def test_other_features_are_refused_by_name_until_they_are_taken_back(
    lake: Path, feature: str, configuration: dict[str, str], columns: Callable[[list[Any]], None] | None
) -> None:
    running = LakeTable.open(lake, NAME)
    upgrade(lake, ["appendOnly", feature], configuration, columns or (lambda _fields: None))
    for table in (running, LakeTable.open(lake, NAME)):
        for _ in range(2):
            with pytest.raises(TableMismatch) as refused:
                table.append(state(1), TransactionId("hub", 1))
            assert refused.value.table == NAME
            assert feature in refused.value.why
            assert refused.value.next_step
        assert table.refusal is not None
        assert table.compact() == 0
    downgrade(lake)
    running.append(state(1), TransactionId("hub", 1))
    assert running.refusal is None
    assert gateways(lake) == ["gw1"]


def test_refused_append_leaves_no_data_file(lake: Path) -> None:
    table = LakeTable.open(lake, NAME)
    upgrade(lake, ["rowTracking"])
    for _ in range(3):
        with pytest.raises(TableMismatch):
            table.append(state(1))
    assert len(list((lake / NAME).rglob("*.parquet"))) == 1, "that of the attempt that met the change"


class TestFences:
    def test_fence_of_a_refused_table_is_written_where_the_protocol_allows_it(self, lake: Path) -> None:
        upgrade(lake, ["rowTracking"])
        table = LakeTable.open(lake, NAME)
        assert not table.settled(TransactionId("hub", 1))
        downgrade(lake)
        with pytest.raises(LakeError, match="fenced"):
            table.append(state(1), TransactionId("hub", 1))

    @pytest.mark.parametrize("feature", ["inCommitTimestamp", "a-later-one"])
    def test_no_entry_is_written_where_a_feature_may_forbid_it(self, lake: Path, feature: str) -> None:
        """A commit that may still arrive is neither confirmed nor forgotten until then."""
        upgrade(lake, [feature])
        table = LakeTable.open(lake, NAME)
        version = table.version
        for attempt in (lambda: table.settled(TransactionId("hub", 1)), lambda: table.fence({"hub": 1})):
            with pytest.raises(TableMismatch):
                attempt()
        assert DeltaTable(lake / NAME).version() == version


def test_table_with_a_feature_that_cannot_be_read_is_refused_by_name(lake: Path) -> None:
    table = LakeTable.open(lake, NAME)
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["later"], "writerFeatures": ["later"]}
    write_entry(lake, {"protocol": protocol})
    for _ in range(2):
        with pytest.raises(TableMismatch, match="later"):
            table.append(state(1))
    assert table.refusal is not None
    downgrade_entry = log_of(lake) / f"{1:020}.json"
    downgrade_entry.unlink()  # as restored
    table.append(state(1))
    assert gateways(lake) == ["gw1"]


def test_refused_table_is_read_again_while_nothing_is_written(lake: Path) -> None:
    upgrade(lake, ["rowTracking"])
    table = LakeTable.open(lake, NAME)
    downgrade(lake)
    table.compact()
    assert table.refusal is not None, "it was read just now"
    with mock.patch("cloud.lake.tables.REFUSED_CHECK_S", 0.0):
        table.compact()
    assert table.refusal is None


def test_files_with_deleted_rows_are_not_compacted(lake: Path) -> None:
    """Their deletion vectors would be lost, and the rows would be there again."""
    table = LakeTable.open(lake, NAME)
    for number in range(COMPACTED_FILES_MIN + 1):
        table.append(state(number))
    upgrade(lake, ["deletionVectors"])
    added = next(
        action["add"]
        for action in map(json.loads, (log_of(lake) / f"{1:020}.json").read_text().splitlines())
        if "add" in action
    )
    vector = {"storageType": "i", "pathOrInlineDv": FIRST_ROW, "sizeInBytes": 34, "cardinality": 1}
    gone = {"path": added["path"], "deletionTimestamp": 1, "dataChange": True}
    write_entry(lake, {"remove": gone}, {"add": {**added, "deletionVector": vector}})
    table.append(state(99))
    assert table.compact() == COMPACTED_FILES_MIN + 1
    actions = pa.table(DeltaTable(lake / NAME).get_add_actions())
    assert added["path"] in actions["path"].to_pylist()
    vectors = pa.table(DeltaTable(lake / NAME).deletion_vectors())
    assert vectors["selection_vector"].to_pylist() == [[False]]


FIRST_ROW = "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg00000"
"""Deletion vector of the first row of a file, as in the Delta protocol."""


class TestLake:
    def test_other_tables_go_on(self, lake: Path) -> None:
        DeltaLake(lake)
        upgrade(lake, ["rowTracking"])
        opened = DeltaLake(lake)
        assert set(opened.refusals) == {NAME}
        with pytest.raises(TableMismatch):
            opened.require_writable(NAME)
        opened.require_writable("telemetry")

    def test_columns_of_another_engine_stay_if_rows_need_not_have_them(self, lake: Path) -> None:
        def add(name: str, *, nullable: bool) -> Callable[[list[Any]], None]:
            field = {"name": name, "type": "string", "nullable": nullable, "metadata": {}}
            return lambda fields: fields.append(field)

        upgrade(lake, ["appendOnly"], columns=add("site", nullable=True))
        LakeTable.open(lake, NAME).append(state(1))
        upgrade(lake, ["appendOnly"], columns=add("plant", nullable=False))
        with pytest.raises(TableMismatch, match="plant"):
            LakeTable.open(lake, NAME)
