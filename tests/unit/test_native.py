"""The functions of the C extension, with wrong arguments and with objects that change while being read."""

from __future__ import annotations

import errno
import gc
import socket
from collections.abc import Callable
from typing import Any

import pytest

from bridge.engine.loops import FUNCTIONS
from bridge.message import Run, Stored
from bridge.native import functions

NAMES = sorted(name for name in dir(functions) if callable(getattr(functions, name)) and name[0] != "_")
EMPTY = ("amqp_forget", "amqp_held_bytes", "amqp_settle_all", "tcp_send")
"""Functions that do nothing with an empty container."""
BYTES = ("amqp_malformed_at", "amqp_strip_header", "mqtt_make_prefix")
ANY = ("mqtt_make_log", "mqtt_make_turn")


class TestArguments:
    """A wrong count or type of arguments raises an error, and does not crash the process."""

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("count", [0, 20])
    def test_wrong_number_of_arguments_raises(self, name: str, count: int) -> None:
        with pytest.raises(TypeError, match=f"{name} takes"):
            getattr(functions, name)(*[None] * count)

    @pytest.mark.parametrize("wrong", [None, object(), [], {}, b"", "", 1.5], ids=lambda wrong: type(wrong).__name__)
    def test_wrong_type_raises(self, wrong: Any) -> None:
        for name in NAMES:
            accepted = name in ANY or (name in EMPTY and hasattr(wrong, "__iter__"))
            accepted = (
                accepted or (name in BYTES and isinstance(wrong, bytes)) or (name == "mqtt_make_column" and not wrong)
            )
            for count in range(0 if accepted else 15):
                with pytest.raises((TypeError, ValueError)):
                    getattr(functions, name)(*[wrong] * count)

    def test_missing_function_of_proton_is_named(self) -> None:
        addresses = dict.fromkeys(FUNCTIONS, 1)
        del addresses["pn_link_recv"]
        with pytest.raises(KeyError, match="pn_link_recv"):
            functions.bind_proton(addresses, 1, 2, 3, 4)


class Fleeting:
    """Run that makes a new object at each access of a field, and calls `then`."""

    flags, received_at = 1, 5

    def __init__(self, then: Any = lambda: None, **fields: Any) -> None:
        self._then = then
        self._fields = {"address": "plant/7", "device": "d", "properties": b"", "bodies": [b"one", b"two"], **fields}

    def __getattr__(self, name: str) -> Any:
        self._then()
        found = self._fields[name]
        return "".join(list(found)) if isinstance(found, str) else found[:]


class TestObjectsThatChange:
    """An object stays valid until its reader is done."""

    def test_fields_without_other_references_are_safe(self) -> None:
        run = Fleeting()
        appended: list[Any] = []
        sequences: dict[str, int] = {}
        assert functions.number_runs([(1, run)], 0, {"plant/7": 3}, {1: 10}, sequences, appended, Stored) == 1
        assert (sequences, appended) == ({"plant/7": 5}, [(1, Stored(10, 3, run))])  # type: ignore[arg-type]
        usual = Run("plant/7", "d", 1, b"", [b"one", b"two"], 5)
        assert functions.pack_runs([(10, 3, run)], -1) == functions.pack_runs([(10, 3, usual)], -1)
        assert functions.pass_over([(1, (10, 3, run))], 0, 1, 10) == (1, 12)

    def test_position_beyond_63_bits_raises(self) -> None:
        run = Run("a", "d", 1, b"", [b"x"])
        with pytest.raises(OverflowError):
            functions.number_runs([(1, run)], 0, {"a": 0}, {1: 2**63 - 1}, {}, [], Stored)

    def test_bodies_may_grow_while_a_segment_is_packed(self) -> None:
        first = Run("a", "d", 1, b"", [b"x"], 5)
        expected, messages, size = functions.pack_runs([(0, 0, first), (1, 0, Run("b", "d", 1, b"", [b"y"], 5))], -1)
        second = Fleeting(lambda: first.bodies.extend([b"z" * 5_000] * 50), address="b", bodies=[b"y"])
        assert functions.pack_runs([(0, 0, first), (1, 0, second)], -1) == (expected, messages, size)
        assert len(first.bodies) > 50

    def test_list_of_runs_may_be_emptied_while_it_is_packed(self) -> None:
        runs: list[Any] = []
        runs += [(0, 0, Fleeting(runs.clear)), (2, 0, Fleeting())]
        with pytest.raises(IndexError):
            functions.pack_runs(runs, -1)

    def test_bodies_may_grow_while_packets_are_written(self) -> None:
        runs = [Run("a", "d", 1, b"", [b"x"]), Run("a", "d", 1, b"", [b"y"])]

        def delivery(run: Run, *_: Any) -> object:
            for each in runs:
                each.bodies.extend([b"z" * 5_000] * 50)
            return run

        outgoing: dict[int, Any] = {}
        packets = functions.mqtt_encode_publishes(runs, 1, b"", [1, 2], outgoing, delivery, None, (), 16_000, 100)  # type: ignore[arg-type]
        assert packets == b"\x32\x06\x00\x01a\x00\x01x\x32\x06\x00\x01a\x00\x02y"
        assert list(outgoing) == [1, 2]

    @pytest.mark.parametrize("number", [0, 65_536, -1])
    def test_invalid_packet_identifier_raises(self, number: int) -> None:
        run = Run("a", "d", 1, b"", [b"x"])
        with pytest.raises(ValueError, match="packet identifier"):
            functions.mqtt_encode_publishes([run], 1, b"", [number], {}, lambda *_: None, None, (), 16_000, 100)  # type: ignore[arg-type]


class Client:
    """The connection of a lane, as the lane sees it."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self._then = then
        self._outstanding = 0

    @property
    def outstanding(self) -> int:
        self._then()
        return self._outstanding

    @outstanding.setter
    def outstanding(self, number: int) -> None:
        self._outstanding = number


HEAD, OTHER = b"\x00\x07plant/7", b"\x00\x07plant/8"
FIRST = b"\x32\x0c" + HEAD + b"\x00\x01x"
SECOND = b"\x32\x0c" + OTHER + b"\x00\x02y"
PINGREQ = b"\xc0\x00"
WRITES: tuple[Any, list[bytes]] = ("driver", [])


class Reading:
    """A lane that has learned two topics. `change` gets the name of each point where the lane calls Python."""

    def __init__(self, change: Callable[[Reading, str], None]) -> None:
        def at(point: str) -> Callable[[], None]:
            return lambda: change(self, point)

        def begin() -> None:
            functions.mqtt_stamp_turn(self.turn, 1.0, int("4" * 20), int("5" * 20), int("6" * 20))
            change(self, "begin")

        def make_run(*fields: Any) -> Any:
            change(self, "run")
            return fields

        def given(data: bytes, kind: int) -> int:
            self.given.append(data)
            return 0

        self.given: list[bytes] = []
        self.turn = functions.mqtt_make_turn(begin, at("publish"), make_run)  # type: ignore[arg-type]
        self.lane, self.receive = functions.mqtt_make_lane(
            self.turn, object(), "d", Client(at("outstanding")), given, WRITES, 4, 20, 1_000, 10
        )  # fmt: skip
        del given  # only the lane holds them
        column = functions.mqtt_make_column(functions.mqtt_make_log(object()), at("live"))
        for head, address in ((HEAD, "plant/7"), (OTHER, "plant/8")):
            functions.mqtt_learn_topic(self.lane, 0x32, head, b"", address, b"", column)

    def take(self) -> list[Any]:
        return functions.mqtt_take_messages(self.turn)


CHANGES: dict[str, Callable[[Reading], object]] = {
    "unlearn": lambda reading: functions.mqtt_forget_learned(reading.lane),
    "close": lambda reading: functions.mqtt_close_lane(reading.lane),
    "stamp": lambda reading: functions.mqtt_stamp_turn(reading.turn, 2.0, int("1" * 20), int("2" * 20), int("3" * 20)),
    "take": Reading.take,
    "close-turn": lambda reading: functions.mqtt_close_turn(reading.turn),
    "end-turn": lambda reading: (functions.mqtt_close_turn(reading.turn), reading.take()),
    "forget": lambda reading: functions.mqtt_forget_routes(reading.turn),
}


class TestLanesThatChange:
    """A callback of a lane may change the lane and the turn."""

    @pytest.mark.parametrize("point", ["begin", "run", "outstanding", "publish"])
    @pytest.mark.parametrize("change", CHANGES)
    def test_lane_may_change_while_it_reads(self, point: str, change: str) -> None:
        changed: list[str] = []

        def then(reading: Reading, at: str) -> None:
            if at == point and not changed:
                changed.append(at)
                CHANGES[change](reading)
                gc.collect()

        reading = Reading(then)
        reading.receive(FIRST + SECOND + PINGREQ)
        assert changed == [point]
        for stretch in reading.take():
            if not isinstance(stretch, tuple):
                assert {run[0] for _, run, _ in functions.mqtt_list_members(stretch)} <= {"plant/7", "plant/8"}

    @pytest.mark.parametrize("change", CHANGES)
    def test_lane_may_change_while_it_answers(self, change: str) -> None:
        changed: list[str] = []
        answering: list[Any] = []

        def then(reading: Reading, at: str) -> None:
            if answering and at == "outstanding":
                changed.append(at)
                CHANGES[change](reading)
                gc.collect()

        reading = Reading(then)
        reading.receive(FIRST + SECOND)
        answering = reading.take()
        answers = [] if change == "close" else [(*WRITES, b"\x40\x02\x00\x01\x40\x02\x00\x02")]
        assert functions.mqtt_accept_all(answering[0], True) == (answers, [])
        assert changed == ["outstanding"]


class TestProton:
    """Addresses of Proton's objects are checked as far as possible."""

    def test_each_delivery_has_a_tag(self) -> None:
        with pytest.raises(ValueError, match="one tag"):
            functions.amqp_forget_accepted({}, [1, 2], [1])

    def test_freed_object_raises(self) -> None:
        with pytest.raises(ValueError, match="freed"):
            functions.amqp_send(1, 0, [b"x"], None, 0, [])
        with pytest.raises(ValueError, match="freed"):
            functions.amqp_receive(0)


class TestSockets:
    """Many sockets in one call."""

    def test_each_socket_is_read_and_written(self) -> None:
        pairs = [socket.socketpair() for _ in range(10)]
        near, far = [one.fileno() for one, _ in pairs], [other.fileno() for _, other in pairs]
        try:
            assert functions.tcp_send(near, [b"%d" % number for number in range(10)]) == [1] * 10
            pairs[3][0].close()
            buffer = memoryview(bytearray(100))
            found = functions.tcp_receive([*far, near[3]], buffer, 50)
            assert found == [*(b"%d" % number for number in range(10)), errno.EBADF]
            assert functions.tcp_receive(far, buffer, 50) == [None] * 3 + [b""] + [None] * 6
            assert functions.tcp_send([far[3], near[4]], [b"gone", b"four"]) == [-errno.EPIPE, 4]
            most = functions.tcp_send([near[0]], [bytes(8 << 20)])
            assert 0 < most[0] < 8 << 20
            assert functions.tcp_send([near[0]], [b"more"]) == [0]
            assert [len(one) for one in functions.tcp_receive([far[0], far[4]], buffer, 50)] == [50, 4]
        finally:
            for pair in pairs:
                for each in pair:
                    each.close()

    def test_reads_are_limited_by_the_buffer(self) -> None:
        with socket.socket() as near:
            pairs = [socket.socketpair() for _ in range(4)]
            for one, _ in pairs:
                one.send(bytes(100))
            found = functions.tcp_receive([other.fileno() for _, other in pairs], memoryview(bytearray(40)), 50)
            assert [len(each) for each in found] == [10, 10, 10, 10]
            with pytest.raises(ValueError, match="65 sockets"):
                functions.tcp_receive([near.fileno()] * 65, memoryview(bytearray(40)), 50)
            with pytest.raises(ValueError, match="differ in length"):
                functions.tcp_send([near.fileno()], [])
            with pytest.raises((TypeError, BufferError)):
                functions.tcp_receive([near.fileno()], memoryview(b"read only"), 50)
            for pair in pairs:
                for each in pair:
                    each.close()
