"""Annotations that a consumer adds with `modified` are merged, bounded and delivered with the message."""

from __future__ import annotations

import pytest

from bridge.amqp_values import DecodeError, Symbol, Ubyte, decode, encode
from bridge.message import AMQP, Run, Stored
from bridge.sections import sections
from edge.broker.delivery import attempts
from edge.broker.delivery.attempts import Attempts
from edge.broker.message.amqp_annotations import merge_annotations, merge_into_run

DATA = b"\x00\x53\x75\xa0\x01x"


def annotated(**annotations: object) -> bytes:
    return b"\x00\x53\x72" + encode({Symbol(key): value for key, value in annotations.items()})


def fields(**annotations: object) -> bytes:
    return annotated(**annotations)[3:]


def read(message: bytes) -> dict[object, object]:
    section = next(sections(message))
    found, end = decode(message, section.value)
    assert end == section.end
    assert message[end:] == DATA
    assert isinstance(found, dict)
    return found


class TestMerged:
    def test_annotations_are_added_where_there_are_none(self) -> None:
        assert read(merge_annotations(DATA, fields(a=1))) == {"a": 1}

    def test_new_value_replaces_and_others_keep_their_encoding(self) -> None:
        message = merge_annotations(annotated(a=Ubyte(1), b="old") + DATA, fields(b="new", c=True))
        assert read(message) == {"a": 1, "b": "new", "c": True}
        assert encode(Symbol("a")) + encode(Ubyte(1)) in message

    def test_wide_maps_are_merged(self) -> None:
        assert read(merge_annotations(annotated(a="x" * 300) + DATA, fields(b="y" * 300))) == {
            "a": "x" * 300,
            "b": "y" * 300,
        }

    @pytest.mark.parametrize("annotations", [b"", b"\x40", b"\xc1\x02\x01\x40", fields(a=1)[:-1]])
    def test_values_other_than_maps_are_ignored(self, annotations: bytes) -> None:
        with pytest.raises(DecodeError):
            merge_annotations(DATA, annotations)
        run = Run("q", "d", AMQP, b"", [DATA])
        assert merge_into_run(run, annotations) is run

    def test_mqtt_messages_have_no_annotations(self) -> None:
        run = Run("q", "d", 1, b"", [b"payload"])
        assert merge_into_run(run, fields(a=1)) is run


def test_stored_annotations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "ATTEMPTS_ANNOTATION_BYTES_MAX", 20)
    table = Attempts()
    for position in range(3):
        table.annotate(position, fields(a=position))
    run = Run("q", "d", AMQP, b"", [DATA])
    shown = [table.annotated(Stored(position, position, run)).run is run for position in range(3)]
    assert shown == [False, False, True]
    table.forget(0, 2)
    assert table.annotated(Stored(0, 0, run)).run is run
    table.annotate(2, fields(a=2))
    assert read(table.annotated(Stored(2, 2, run)).run.bodies[0]) == {"a": 2}
