"""Merge the annotations that a consumer adds with `modified` (AMQP 1.0 section 3.4.5) into a message.

Existing annotations are copied in their encoded form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from bridge.amqp_values import Allowance, DecodeError, decode
from bridge.limits import ANNOTATIONS_MAX
from bridge.message import AMQP, Run
from bridge.sections import MESSAGE_ANNOTATIONS, section_at, skip

_MAP8, _MAP32 = 0xC1, 0xD1


def merge_annotations(body: bytes, annotations: bytes) -> bytes:
    """Return a message without its header with the pairs of an encoded map added; new values replace old ones.

    Raises `DecodeError` if message or map is invalid.
    """
    ours = list(pairs(annotations, 0))
    keys = {key for key, _ in ours}
    section = section_at(body, 0)
    kept: list[bytes] = []
    rest = body
    if section.code == MESSAGE_ANNOTATIONS:
        rest = body[section.end :]
        kept = [pair for key, pair in pairs(body, section.value) if key not in keys]
    return _section([*kept, *(pair for _, pair in ours)]) + rest


def remove_annotations(body: bytes, names: AbstractSet[str]) -> bytes:
    """Return a message without its header, and without the annotations of these names. Raises `DecodeError`."""
    section = section_at(body, 0)
    if section.code != MESSAGE_ANNOTATIONS:
        return body
    kept = [pair for key, pair in pairs(body, section.value) if str(key) not in names]
    rest = body[section.end :]
    return _section(kept) + rest if kept else rest


def _section(every: Sequence[bytes]) -> bytes:
    """Return the section with these encoded pairs."""
    raw = b"".join(every)
    return b"\x00\x53\x72\xd1" + (len(raw) + 4).to_bytes(4, "big") + (2 * len(every)).to_bytes(4, "big") + raw


def merge_into_run(run: Run, annotations: bytes) -> Run:
    """Merge annotations into every message of a run. MQTT messages and invalid messages are not changed."""
    if not run.flags & AMQP:
        return run
    try:
        bodies = [merge_annotations(body, annotations) for body in run.bodies]
    except DecodeError:
        return run
    return Run(run.address, run.device, run.flags, run.properties, bodies, run.received_at)


def pairs(data: bytes, offset: int) -> Iterator[tuple[object, bytes]]:
    """Yield key and encoded pair of the map at `offset`. Raises `DecodeError` if it is not a map, `TooLarge` if it has
    too many pairs."""
    code = data[offset] if offset < len(data) else 0
    end = skip(data, offset)
    if code not in (_MAP8, _MAP32):
        raise DecodeError(f"not a map at byte {offset}")
    start = offset + (9 if code == _MAP32 else 3)
    allowance = Allowance(ANNOTATIONS_MAX)
    while start < end:
        allowance.spend(1)
        key, value = decode(data, start)
        following = skip(data, value)
        if following > end or isinstance(key, dict | list):
            raise DecodeError(f"invalid pair at byte {start}")
        yield key, data[start:following]
        start = following
