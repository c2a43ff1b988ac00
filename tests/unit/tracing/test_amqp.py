"""AMQP frames in words, both ways and however they are cut, without bodies and passwords."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.amqp_values import DescribedValue, Symbol, Symbols, Ubyte, Uint, Ulong, encode
from edge.broker.tracing import amqp
from edge.broker.tracing.amqp import AmqpDissector
from edge.broker.tracing.dissector import DissectedPacket
from edge.broker.tracing.events import IN, OUT
from edge.broker.tracing.limits import TRACE_ADDRESSES_KEPT_MAX

SECRET = b"hunter2-secret"


def frame(code: int, fields: list[Any], *, payload: bytes = b"", channel: int = 0, sasl: bool = False) -> bytes:
    body = encode(DescribedValue(Ulong(code), fields)) + payload
    return (len(body) + 8).to_bytes(4, "big") + bytes((2, sasl)) + channel.to_bytes(2, "big") + body


def terminus(code: int, address: str | None) -> DescribedValue:
    return DescribedValue(Ulong(code), [address])


def attach(name: str, handle: int, *, receiver: bool, address: str | None) -> bytes:
    source, target = (terminus(0x28, address), terminus(0x29, None)) if receiver else (None, terminus(0x29, address))
    return frame(amqp.ATTACH, [name, Uint(handle), receiver, None, None, source, target])


def transfer(handle: int, delivery: int, *, settled: bool = False, more: bool = False) -> bytes:
    fields = [Uint(handle), Uint(delivery), b"tag", Uint(0), settled, more]
    return frame(amqp.TRANSFER, fields, payload=SECRET)


def error(name: str, description: str) -> DescribedValue:
    return DescribedValue(Ulong(0x1D), [Symbol(name), description])


def read(dissector: AmqpDissector, direction: str, *frames: bytes) -> list[DissectedPacket]:
    return [each for each in dissector.read(direction, b"".join(frames), lambda: True) if each is not None]


CASES = [
    (b"AMQP\x03\x01\x00\x00", ("header", None, (), None, "", "SASL 1.0.0")),
    (frame(amqp.MECHANISMS, [Symbols(("PLAIN", "EXTERNAL"))], sasl=True),
     ("sasl-mechanisms", None, (), None, "", "PLAIN EXTERNAL")),
    (frame(amqp.INIT, [Symbol("PLAIN"), b"\0alice\0" + SECRET], sasl=True), ("sasl-init", None, (), None, "", "PLAIN")),
    (frame(amqp.RESPONSE, [SECRET], sasl=True), ("sasl-response", None, (), None, "", "elided")),
    (frame(amqp.OUTCOME, [Ubyte(1)], sasl=True),
     ("sasl-outcome", None, (), None, "auth: credentials refused", "")),
    (frame(amqp.OPEN, ["press1", "host", Uint(65536), None, Uint(30000)]),
     ("open", None, (), None, "", "container press1, host host, max frame 65536 B, idle timeout 30000 ms")),
    (frame(amqp.BEGIN, [None, Uint(0), Uint(1), Uint(1)]), ("begin", None, (), None, "", "")),
    (frame(amqp.FLOW, [Uint(0), Uint(9), Uint(0), Uint(9), Uint(0), Uint(0), Uint(50), Uint(0), True]),
     ("flow", None, ("h=0",), None, "", "credit 50, drain")),
    (frame(amqp.DETACH, [Uint(0), True, error("amqp:unauthorized-access", "alice must not")]),
     ("detach", None, (), None, "amqp:unauthorized-access", "closed, alice must not")),
    (frame(amqp.END, []), ("end", None, (), None, "", "")),
    (frame(amqp.CLOSE, [error("amqp:connection:forced", "bye")]),
     ("close", None, (), None, "amqp:connection:forced", "bye")),
    ((8).to_bytes(4, "big") + b"\2\0\0\0", ("heartbeat", None, (), None, "", "")),
    (transfer(5, 7, settled=True, more=True), ("transfer", 7, ("h=5", "settled", "more"), 14, "", "")),
    (frame(amqp.DISPOSITION,
           [True, Uint(3), Uint(5), True, DescribedValue(Ulong(0x25), [error("amqp:not-allowed", "no")])]),
     ("disposition", 3, ("rejected", "settled"), None, "amqp:not-allowed", "no")),
    (frame(amqp.DISPOSITION, [True, Uint(3), None, False, DescribedValue(Ulong(0x27), [True, True])]),
     ("disposition", 3, ("modified delivery-failed undeliverable-here", "unsettled"), None, "", "")),
]  # fmt: skip


def shown(packet: DissectedPacket) -> tuple[Any, ...]:
    return packet.name, packet.id, packet.flags, packet.payload_bytes, packet.reason, packet.text


@pytest.mark.parametrize(("data", "expected"), CASES, ids=[f"{i}-{case[1][0]}" for i, case in enumerate(CASES)])
def test_frame_is_described(data: bytes, expected: tuple[Any, ...]) -> None:
    (found,) = read(AmqpDissector(), IN, data)
    assert shown(found) == expected
    assert found.bytes == len(data)
    assert SECRET.decode() not in repr(found)


def test_user_of_plain_and_scram_is_known_and_the_password_is_not() -> None:
    for mechanism, response in (("PLAIN", b"\0alice\0" + SECRET), ("SCRAM-SHA-256", b"n,,n=alice,r=" + SECRET)):
        dissector = AmqpDissector()
        found = read(dissector, IN, frame(amqp.INIT, [Symbol(mechanism), response], sasl=True))
        assert dissector.user == "alice"
        assert SECRET.decode() not in repr(found)


def test_container_identifies_the_client() -> None:
    dissector = AmqpDissector()
    read(dissector, OUT, frame(amqp.OPEN, ["gw1"]))
    assert not dissector.known
    read(dissector, IN, frame(amqp.OPEN, ["press1"]))
    assert (dissector.known, dissector.client) == (True, "press1")


def test_transfers_and_dispositions_show_the_address_of_their_link() -> None:
    dissector = AmqpDissector()
    read(
        dissector, IN, attach("up", 0, receiver=False, address="jobs"), attach("down", 1, receiver=True, address="cmd")
    )
    read(dissector, OUT, attach("up", 4, receiver=True, address=None), attach("down", 5, receiver=False, address=None))
    came = read(dissector, IN, transfer(0, 7), frame(amqp.DISPOSITION, [True, Uint(9), None, True]))
    went = read(dissector, OUT, transfer(5, 9), frame(amqp.DISPOSITION, [True, Uint(7), None, True]))
    came += read(dissector, IN, frame(amqp.DISPOSITION, [True, Uint(9), None, True]))
    assert [each.address for each in came] == ["jobs", "", "cmd"]
    assert [each.address for each in went] == ["cmd", "jobs"]


def test_refused_attach_is_shown() -> None:
    dissector = AmqpDissector()
    read(dissector, IN, attach("up", 0, receiver=False, address="other"))
    (found,) = read(dissector, OUT, frame(amqp.ATTACH, ["up", Uint(0), True, None, None, None, None]))
    assert found.address == "other"
    assert "refused" in found.text


def test_any_split_of_the_bytes_gives_the_same_frames() -> None:
    data = b"".join(case[0] for case in CASES)
    whole = [shown(each) for each in read(AmqpDissector(), IN, data)]
    bytewise = AmqpDissector()
    assert [shown(each) for at in range(len(data)) for each in read(bytewise, IN, data[at : at + 1])] == whole


@pytest.mark.parametrize("cut", range(0, len(transfer(0, 1)), 3))
def test_trace_that_joins_within_a_frame_finds_the_next(cut: int) -> None:
    data = b"".join(transfer(0, number) for number in range(1, 5))[cut:]
    dissector = AmqpDissector("press1", "alice", began=True, only=("jobs", ""))
    found = read(dissector, IN, data)
    assert [each.id for each in found][-3:] == [2, 3, 4]
    assert {each.address for each in found} == {"jobs"}


def test_link_without_an_address_does_not_get_that_of_another_link() -> None:
    dissector = AmqpDissector("press1", "alice", began=True, only=("jobs", ""))
    dissector.shows_payload = True
    found = read(
        dissector, IN, *(transfer(0, number) for number in range(4)), attach("any", 1, receiver=False, address=None)
    )
    assert found[-2].address == "jobs", "the link that was open before the trace"
    found = read(dissector, IN, transfer(1, 5), transfer(0, 6))
    assert [each.address for each in found] == ["", "jobs"]
    for handle in range(2, TRACE_ADDRESSES_KEPT_MAX + 3):
        read(dissector, IN, attach(f"link {handle}", handle, receiver=False, address="plant"))
    assert [each.address for each in read(dissector, IN, transfer(1, 7))] == [""], (
        "forgotten, and still not the only one"
    )


def test_invalid_frame_is_reported_once() -> None:
    dissector = AmqpDissector()
    assert [each.name for each in read(dissector, IN, b"GET / HTTP/1.1\r\n\r\n")] == ["(not AMQP)"]
    assert read(dissector, IN, transfer(0, 1)) == []


def test_malformed_performative_is_named_and_skipped() -> None:
    bad = frame(amqp.FLOW, [])[:-1] + b"\xc0"
    found = read(AmqpDissector(), IN, bad, frame(amqp.END, []))
    assert [each.name for each in found] == ["frame", "end"]
