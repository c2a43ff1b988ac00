"""The loops in C and their model agree: the same commands and bytes give the same events and the same bytes."""

from __future__ import annotations

from typing import Any

import proton
from cproton import ffi, lib
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.engine import Condition, DeliveryState, Event
from bridge.engine.loops import LOOPS, EngineLoops
from bridge.engine.proton import SCRATCH_BYTES
from edge.broker.message.translation import parse_message
from tests.property.amqp.conversation import CONVERSATION, EDGES, feed
from tests.support.examples import examples
from tests.support.machines import take_all
from tests.support.models.engine_loops import EngineLoopsModel
from tests.unit.amqp.transacting import make_transactional
from tests.unit.amqp.wire import NOW, Pipe

SIZES = (0, 1, 95, 600, 70_000, SCRATCH_BYTES - 1, SCRATCH_BYTES, 4 * SCRATCH_BYTES + 1)
STATES = [state for state in DeliveryState if state not in (DeliveryState.NONE, DeliveryState.RECEIVED)]
NAMES = (b"", b"a", b"b")
"""Identifiers of transactions."""
numbers = st.integers(0, 30)
steps = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 6), st.sampled_from(SIZES), st.booleans()),
    st.tuples(st.just("settle"), st.integers(0, 1), st.lists(numbers, max_size=8), st.sampled_from(STATES)),
    st.tuples(st.just("update"), st.integers(0, 1), numbers, st.sampled_from([0x23, 0x24, 0x25, 0x26, 0x27, 0x99])),
    st.tuples(st.just("settle_sent"), st.integers(0, 1), numbers),
    st.tuples(st.just("abort"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("grant"), st.integers(0, 1), st.integers(1, 9), st.booleans()),
    st.tuples(st.just("detach"), st.integers(0, 1), st.booleans(), st.booleans()),
    st.tuples(st.just("carry"), st.booleans(), st.sampled_from([1 << 20, 5000, 63])),
)

posting_steps = st.one_of(
    st.tuples(st.just("post"), st.integers(0, 1), st.sampled_from(NAMES), st.sampled_from(SIZES[:4]), st.booleans()),
    st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 3), st.sampled_from(SIZES[:4]), st.booleans()),
    st.tuples(st.just("settle"), st.integers(0, 1), st.lists(numbers, max_size=8), st.sampled_from(STATES)),
    st.tuples(st.just("grant"), st.integers(0, 1), st.integers(1, 9), st.booleans()),
    st.tuples(st.just("carry"), st.booleans(), st.sampled_from([1 << 20, 63])),
)
"""Steps with messages of transactions."""


def plain(event: Event) -> Any:
    """Return the content of an event without objects of its engine."""
    fields = [getattr(event, name) for name in event.__struct_fields__]
    link = getattr(event, "link", None)
    return (type(event).__name__, link and (link.name, link.credit), [field for field in fields if field is not link])


class Script:
    """Two engines with a link in each direction, and a record of their output."""

    def __init__(self, loops: EngineLoops) -> None:
        terms = {"max_frame_size": 4096, "loops": loops}
        self.pipe = Pipe(client=terms, server=terms)
        self.ways = [(self.pipe.client, self.pipe.server, *self.pipe.sender())]
        there, here = self.pipe.receiver()[::-1]
        self.ways.append((self.pipe.server, self.pipe.client, there, here))
        there.report_accepted_by_tag()
        self.tags = [0, 250]
        self.said: list[Any] = []

    def send(self, way: int, count: int, size: int, settled: bool) -> None:
        engine, _, link, _ = self.ways[way]
        engine.send_all(link, self.tags[way], [bytes([65 + i]) * size for i in range(count)], settled=settled)
        self.tags[way] += count

    def post(self, way: int, name: bytes, size: int, settled: bool) -> None:
        """Send a message in a transaction."""
        engine, _, link, _ = self.ways[way]
        if link.closed:
            return
        tag = self.tags[way]
        engine.send(link, tag, bytes(size))
        self.tags[way] += 1
        make_transactional(link, tag, name)
        if settled:
            engine.settle_sent(link, tag)

    def settle(self, way: int, deliveries: list[int], state: DeliveryState) -> None:
        _, engine, _, link = self.ways[way]
        engine.settle(
            link, deliveries, state, Condition("amqp:not-found", "why") if state is DeliveryState.REJECTED else None
        )

    def update(self, way: int, delivery: int, state: int) -> None:
        """Report an outcome without settling."""
        link = self.ways[way][3]
        if delivery in link._unsettled and not link.closed:
            lib.pn_delivery_update(ffi.cast("pn_delivery_t *", link._unsettled[delivery]), state)

    def settle_sent(self, way: int, tag: int) -> None:
        self.ways[way][0].settle_sent(self.ways[way][2], tag + 250 * way)

    def abort(self, way: int, under_way: bool) -> None:
        """Abort a delivery, before or after its first frames have left."""
        link = self.ways[way][2]
        if link.closed or lib.pn_link_current(link._pn):
            return
        name = ffi.new("char[]", b"\xff")
        delivery = lib.pn_delivery(link._pn, ffi.new("pn_bytes_t *", {"size": 1, "start": name})[0])
        lib.pn_link_send(link._pn, bytes(9000), 9000)
        if under_way:
            self.carry(True, 1 << 20)
        if not link.closed:
            lib.pn_delivery_abort(delivery)

    def grant(self, way: int, credit: int, drain: bool) -> None:
        self.ways[way][1].grant(self.ways[way][3], credit, drain=drain)

    def detach(self, way: int, receiver: bool, closed: bool) -> None:
        self.ways[way][receiver].detach(self.ways[way][2 + receiver], closed=closed)

    def carry(self, both: bool, chunk: int) -> None:
        for engine, peer in [(self.pipe.client, self.pipe.server), (self.pipe.server, self.pipe.client)][: 1 + both]:
            data = engine.data_to_send()
            self.said.append(data)
            for start in range(0, len(data), chunk):
                self.said += map(plain, take_all(peer, data[start : start + chunk], NOW))

    def kept(self) -> list[Any]:
        """Return the deliveries and output that the engines hold, without object addresses."""
        links = [link for way in self.ways for link in way[2:]]
        engines = [self.pipe.client, self.pipe.server]
        for engine in engines:
            count = sum(len(link._sent) + len(link._unsettled) for link in engine._links.by_address.values())
            assert engine._links.deliveries.unsettled == count
        return [(engine.held_bytes, engine.has_output, engine.closed) for engine in engines] + [
            (link.credit, link.closed, sorted(link._sent), sorted(link._unsettled))
            + (() if link.closed else (lib.pn_link_unsettled(link._pn), lib.pn_link_queued(link._pn)))
            for link in links
        ]


def transcript(script: list[Any], loops: EngineLoops) -> list[Any]:
    run = Script(loops)
    for name, *arguments in [*script, *[("carry", True, 1 << 20)] * 4]:
        getattr(run, name)(*arguments)
        run.said.append(run.kept())
    return [*run.said, [plain(event) for event in run.pipe.server.receive_eof(NOW)]]


MODEL = EngineLoopsModel()


@given(st.lists(steps, max_size=25))
@settings(max_examples=100)  # as in every run: it is quick
def test_commands_agree(script: list[Any]) -> None:
    assert transcript(script, LOOPS) == transcript(script, EngineLoopsModel())


@given(st.lists(posting_steps, max_size=25))
@settings(max_examples=examples(50))
def test_transactions_agree(script: list[Any]) -> None:
    assert transcript(script, LOOPS) == transcript(script, EngineLoopsModel())


@given(
    st.lists(st.integers(0, len(CONVERSATION)), max_size=8), st.integers(0, len(CONVERSATION) - 1), st.integers(0, 255)
)
def test_damaged_bytes_agree(cuts: list[int], at: int, value: int) -> None:
    data = CONVERSATION[:at] + bytes([value]) + CONVERSATION[at + 1 :]
    cuts = [*EDGES, *cuts]
    assert list(map(plain, feed(data, cuts))) == list(map(plain, feed(data, cuts, EngineLoopsModel())))


VALUES = [
    b"\x40", b"\x45", b"\x56\x01", b"\x73\0\0\0\x41", b"\xa1\x05gr\xc3\xbcn", b"\xa3\x02ab", b"\xb0\0\0\0\x03abc",
    b"\x98" + bytes(16), b"\x84" + bytes(8), b"\xe0\x04\x02\x50\x01\x02", b"\xf0\0\0\0\x0a\0\0\0\x02\xa1\x01a\x02bc",
    b"\xc0\x05\x02\x54\x01\xa0\0", b"\xc1\x07\x02\xa1\x01a\x52\x05\x40"[:8], b"\0\xa3\x01d\xd0\0\0\0\x05\0\0\0\x01\x41",
    b"\xe0\x07\x02\0\x53\x07\x50\x01\x02", b"\xa1\x04\xf0\x9f\x98\x80", b"\xd1\0\0\0\x08\0\0\0\x02\xa3\x01k\x41",
]  # fmt: skip
"""Encodings of every kind of value."""


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw a message of many sections, perhaps truncated, with a changed byte or with trailing bytes."""
    some = st.lists(st.sampled_from(VALUES), max_size=4)

    def compound(code: int, items: list[bytes]) -> bytes:
        body = b"".join(items)
        return bytes((code, len(body) + 1, len(items))) + body

    def pairs(key: bytes) -> bytes:
        return compound(0xC1, [each for value in draw(some) for each in (key, value)])

    parts = [
        b"\0Sp" + compound(0xC0, draw(some)), b"\0Sq" + pairs(b"\xa3\x01k"), b"\0Sr" + pairs(b"\x53\x07"),
        b"\0Ss" + compound(0xC0, draw(some)), b"\0St" + pairs(b"\xa1\x01k"),
    ]  # fmt: skip
    bodies = [b"\0Su\xa0\x03abc", b"\0Sv" + compound(0xC0, draw(some)), b"\0Sw" + draw(st.sampled_from(VALUES))]
    symbolic = b"\0\xa3\x10amqp:data:binary\xa0\x03abc"
    kept = [part for part in parts if draw(st.booleans())]
    kept += [draw(st.sampled_from([*bodies, symbolic]))] * draw(st.integers(0, 2))
    message = bytearray(b"".join(kept) + draw(st.sampled_from([b"", b"\0Sx\xc1\x01\0", b"\0"])))
    for _ in range(draw(st.integers(0, 2))):
        if message:
            message[draw(st.integers(0, len(message) - 1))] = draw(st.integers(0, 255))
    return bytes(message[: draw(st.integers(0, len(message)))] if draw(st.booleans()) else message)


sections = st.one_of(
    st.binary(max_size=12),
    st.builds(
        lambda descriptor, value, rest: b"\0" + descriptor + value + rest,
        st.sampled_from([b"\x53\x70", b"\x53\x72", b"\x53\x73", b"\x53\x75", b"\x53\x78", b"\x53\x79", b"\x80", b"\0"]),
        st.sampled_from(
            [b"", b"\x40", b"\x45", b"\x50", b"\x71\0\0\0", b"\x98" + bytes(16), b"\xa0\x03abc", b"\xb0\0\0\0\x02ab",
             b"\xb0\xff\xff\xff\xff", b"\xc0\x02\x08@", b"\xc0\x01\x09", b"\xc0\0", b"\xd0\0\0\0\x05\0\0\0\x08@",
             b"\xd0\0\0\0\x04\0\0\0\x09", b"\xd0\0\0\0\0", b"\x00\x53\x01\x40", b"\x30"]
        ),
        st.binary(max_size=3),
    ),
)  # fmt: skip


@given(
    st.lists(st.tuples(st.booleans(), sections), min_size=1, max_size=4), st.sampled_from([b"", b"\0Sp\xc0\x02\x01A"])
)
def test_usual_frames_agree(found: list[tuple[bool, bytes]], header: bytes) -> None:
    messages = [header * begins + section for begins, section in found]
    assert LOOPS.strip_header(messages, header) == MODEL.strip_header(messages, header)


@given(damaged())
@settings(max_examples=examples(600))
def test_malformed_frames_agree(message: bytes) -> None:
    found = LOOPS.malformed_at(message)
    assert found == MODEL.malformed_at(message)
    assert (LOOPS.strip_header([message], b"") is None) or found < 0


@given(damaged())
@settings(max_examples=examples(600))
def test_well_formed_messages_are_decoded_by_another_codec(message: bytes) -> None:
    if LOOPS.malformed_at(message) < 0:
        proton.Message().decode(message)
        assert parse_message(message) is not None


def test_usual_and_unusual_messages_agree() -> None:
    header, plain_body = b"\0Sp\xc0\x02\x01A", b"\0Su\xa0\x03abc"
    expiring = b"\0Ss\xc0\x0a\x09" + b"@" * 9
    for bodies_of in (LOOPS.strip_header, MODEL.strip_header):
        assert bodies_of([header + plain_body, header + b"\0Sw\x40"], header) == [plain_body, b"\0Sw\x40"]
        assert bodies_of([plain_body], b"") == [plain_body]
        for other in (plain_body, header, header + plain_body[:-1], header + b"\0Sr\xc1\x01\0", header + expiring):
            assert bodies_of([header + plain_body, other], header) is None
