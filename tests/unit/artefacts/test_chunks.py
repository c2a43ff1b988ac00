"""Requests for artefacts over MQTT, and the limit of answers that wait."""

from __future__ import annotations

from functools import partial

import pytest

from edge.appliance.artefacts.chunks import (
    AnswerBudget,
    ReportTopic,
    RequestedChunk,
    RequestedOffer,
    device_of_answers,
    read_topic,
)
from edge.appliance.artefacts.limits import (
    ANSWER_BYTES_MIN,
    ANSWER_UNREAD_S,
    ANSWERS_BYTES_MAX,
    CHUNK_BYTES_MAX,
    DEVICE_ANSWERS_BYTES_MAX,
)

DIGEST = "0a" * 32
CHUNK = f"$artefacts/pump-1/get/chunk/{DIGEST}"


@pytest.mark.parametrize(
    ("topic", "request_read"),
    [
        ("$artefacts/pump-1/get/offer", RequestedOffer("pump-1")),
        ("$artefacts/pump-1/report", ReportTopic("pump-1")),
        (f"{CHUNK}/0/100", RequestedChunk("pump-1", DIGEST, 0, 100)),
        (f"{CHUNK}/4096/{10**17}", RequestedChunk("pump-1", DIGEST, 4096, 10**17)),
        (f"{CHUNK}/-1/100", None),
        (f"{CHUNK}/1", None),
        (f"{CHUNK}/{10**18}0/1", None),
        (f"{CHUNK}/\u0661/1", None),
        (f"{CHUNK.upper()}/0/1", None),
        ("$artefacts/pump-1/get/chunk/0a/0/1", None),
        ("$artefacts//get/offer", None),
        ("$artefacts/pump-1/get/offer/more", None),
        ("artefacts/pump-1/get/offer", None),
        ("$artefacts", None),
    ],
)
def test_topics(topic: str, request_read: object) -> None:
    assert read_topic(topic) == request_read


@pytest.mark.parametrize(
    ("pattern", "device"),
    [
        ("$artefacts/pump-1/answer/#", "pump-1"),
        ("$artefacts/+/answer/#", None),
        ("$artefacts//answer/#", None),
        ("$artefacts/pump-1/#", None),
        ("$artefacts/#", None),
        ("$share/group/$artefacts/pump-1/answer/#", None),
    ],
)
def test_filters(pattern: str, device: str | None) -> None:
    assert device_of_answers(pattern) == device


def test_length_of_an_answer_is_limited() -> None:
    assert RequestedChunk("d", DIGEST, 0, 10**17).size == CHUNK_BYTES_MAX
    assert RequestedChunk("d", DIGEST, 0, 0).size == 1


class TestBudget:
    """Limits in bytes of one device and of all."""

    def test_one_device(self) -> None:
        budget = AnswerBudget()
        taken = budget.take("pump-1", DEVICE_ANSWERS_BYTES_MAX, self.never)
        assert taken is not None
        assert budget.take("pump-1", 1, self.never) is None
        assert budget.take("pump-2", 1, self.never) is not None, "it is counted as one of the least size"
        budget.release(taken)
        budget.release(taken)
        assert budget.bytes == ANSWER_BYTES_MIN
        assert budget.take("pump-1", 1, self.never) is not None

    def test_all_devices(self) -> None:
        """The connection that has waited longest is ended, but only after its time."""
        now, ended = [1_000.0], list[int]()
        budget = AnswerBudget(lambda: now[0])
        for number in range(ANSWERS_BYTES_MAX // DEVICE_ANSWERS_BYTES_MAX):
            assert budget.take(f"{number}", DEVICE_ANSWERS_BYTES_MAX, partial(ended.append, number))
        assert budget.bytes == ANSWERS_BYTES_MAX
        assert budget.take("another", CHUNK_BYTES_MAX, self.never) is None
        now[0] += ANSWER_UNREAD_S
        assert budget.take("another", CHUNK_BYTES_MAX, self.never) is not None
        assert ended == [0]
        assert budget.bytes == ANSWERS_BYTES_MAX - DEVICE_ANSWERS_BYTES_MAX + CHUNK_BYTES_MAX

    def never(self) -> None:
        raise AssertionError("its connection is not ended")
