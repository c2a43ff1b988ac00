"""Everything that a store can return survives a batch: values, and the order of each address."""

from __future__ import annotations

import contextlib
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.batch import BatchError, Codec, decode, encode
from bridge.lane import BatchLane
from bridge.message import Stored
from tests.property.bridge.stored_logs import logs, names

Message = tuple[str, int, str, int, int, bytes, bytes]


def flat(items: list[Stored]) -> list[Message]:
    return [
        (run.address, sequence + i, run.device, run.received_at, run.flags, run.properties, body)
        for _, sequence, run in items
        for i, body in enumerate(run.bodies)
    ]


def by_address(messages: list[Message]) -> dict[str, list[Message]]:
    result: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        result[message[0]].append(message)
    return result


@given(logs(), names, names, st.sampled_from(BatchLane), st.sampled_from(Codec), st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_batch_survives_a_round_trip(
    items: list[Stored], space: str, epoch: str, lane: BatchLane, codec: Codec, base: int
) -> None:
    batch = decode(encode(items, space=space, epoch=epoch, lane=lane, bases={"a": base}, codec=codec))
    assert (batch.space, batch.epoch, batch.lane) == (space, epoch, lane)
    assert by_address(flat(batch.stored())) == by_address(flat(items))
    assert all(r.base == (min(base, r.first) if r.address == "a" else 0) for r in batch.ranges)
    assert sum(r.count for r in batch.ranges) == len(batch) == sum(len(item.run) for item in items)


@given(st.binary(max_size=200), logs(), st.data())
@settings(max_examples=100, deadline=None)
def test_garbage_raises_only_batch_error(garbage: bytes, items: list[Stored], data: st.DataObject) -> None:
    good = encode(items, space="s", epoch="e")
    cut = data.draw(st.integers(0, len(good)))
    for bad in (garbage, good[:cut] + garbage, garbage + good[cut:]):
        if bad != good:
            with contextlib.suppress(BatchError):
                decode(bad)
                raise AssertionError("decoded garbage")
