"""The batch format is pinned: gateways in the field and hubs of other versions must read each other for ever.

`golden/<name>.wpb` is a batch, `golden/<name>.json` its content. An existing file never changes; a change of the format
is a new version with new files. Compressed bytes depend on the version of zstd, so there the head and the decoded value
are pinned, and every byte of uncompressed batches.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridge.batch import AddressRange, Batch, Codec, decode, encode
from bridge.lane import BatchLane
from bridge.message import Run, Stored

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.wpb"))
PACKED_SIZES = (slice(4, 8), slice(24, 28), slice(32, 36))
"""Parts of a head that depend on the compressor: checksum, packed table, packed columns."""


def stored(runs: list[dict[str, Any]]) -> list[Stored]:
    return [
        Stored(
            -1,
            run["sequence"],
            Run(
                run["address"],
                run["device"],
                run["flags"],
                bytes.fromhex(run["properties"]),
                [bytes.fromhex(body) for body in run["bodies"]],
                run["received_at"],
            ),
        )
        for run in runs
    ]


def head(data: bytes) -> bytes:
    """Return the 40 bytes of the head and the names after it, without parts that depend on the compressor."""
    names = int.from_bytes(data[36:38], "little") + int.from_bytes(data[38:40], "little")
    result = bytearray(data[: 40 + names])
    for part in PACKED_SIZES:
        result[part] = bytes(4)
    return bytes(result)


def encoded(value: dict[str, Any]) -> bytes:
    return encode(
        stored(value["runs"]),
        space=value["space"],
        epoch=value["epoch"],
        lane=BatchLane[value["lane"]],
        bases=value["bases"],
        codec=Codec[value["codec"]],
    )


def test_golden_files_exist() -> None:
    assert [path.stem for path in GOLDEN] == ["amqp_backlog", "interleaved", "readings", "smallest"]


@pytest.fixture(params=GOLDEN, ids=lambda path: path.stem)
def golden(request: pytest.FixtureRequest) -> tuple[bytes, dict[str, Any]]:
    path: Path = request.param
    value: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return path.read_bytes(), value


def test_bytes_decode_to_the_value(golden: tuple[bytes, dict[str, Any]]) -> None:
    data, value = golden
    batch: Batch = decode(data)
    assert (batch.space, batch.epoch, batch.lane.name) == (value["space"], value["epoch"], value["lane"])
    assert batch.ranges == [AddressRange(*piece) for piece in value["ranges"]]
    by_range = sorted(stored(value["runs"]), key=lambda item: [r[0] for r in value["ranges"]].index(item.run.address))
    assert batch.stored() == by_range


def test_value_encodes_to_the_bytes(golden: tuple[bytes, dict[str, Any]]) -> None:
    data, value = golden
    ours = encoded(value)
    assert head(ours) == head(data)
    if value["codec"] == "NONE":
        assert ours == data
    assert decode(ours) == decode(data)
