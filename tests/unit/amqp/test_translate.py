"""Translation of messages between the two encodings, case by case; the round trips are in tests/property/amqp."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from bridge import sections as s
from bridge.amqp_values import (
    DecodeError,
    DescribedValue,
    Symbol,
    Symbols,
    Timestamp,
    Ubyte,
    Uint,
    Ulong,
    decode,
    encode,
)
from bridge.message import AMQP, DURABLE, RETAIN, Run
from bridge.sections import bare_message, section_at, sections
from edge.broker.delivery.dead_letters import LossReason, dead_letter_runs
from edge.broker.limits import HEADER_USUAL_BYTES_MAX, HEADERS_USUAL_MAX
from edge.broker.message.mqtt_properties import Properties, decode_run, encode_run
from edge.broker.message.translation import (
    AS_USER_PROPERTIES,
    PRIORITY,
    PROPERTY_NAMES,
    Header,
    _read_usual_header,
    address_of,
    amqp_from_run,
    amqp_messages,
    flags_of,
    mqtt_runs,
    parse_message,
    payload_of,
    properties_of,
    read_header,
)
from edge.broker.store.records import Stored
from tests.conftest import ROOT


def section(code: int, value: object) -> bytes:
    return encode(DescribedValue(Ulong(code), value))


DATA = section(s.DATA, b"payload")


class TestValues:
    @pytest.mark.parametrize(
        ("value", "raw"),
        [
            (None, "40"),
            (True, "41"),
            (False, "42"),
            (Uint(0), "43"),
            (Uint(255), "52ff"),
            (Uint(256), "7000000100"),
            (Ulong(0), "44"),
            (Ulong(300), "80000000000000012c"),
            (-1, "55ff"),
            (1000, "8100000000000003e8"),
            (Ubyte(9), "5009"),
            (1.5, "823ff8000000000000"),
            (Timestamp(1), "830000000000000001"),
            ("ä", "a102c3a4"),
            (Symbol("a"), "a30161"),
            (b"\x00", "a00100"),
            ([], "45"),
            ([1], "c003015501"),
            ({"a": 1}, "c10602a101615501"),
            (Symbols(("a", "b")), "e00602a301610162"),
            (Symbols(("a",)), "a30161"),
            (DescribedValue(Ulong(0x70), [True]), "005370c0020141"),
        ],
    )
    def test_encodings_match_the_standard(self, value: object, raw: str) -> None:
        assert encode(value).hex() == raw

    @pytest.mark.parametrize(
        ("raw", "value"),
        [
            ("56 01", True),
            ("60 0102", 258),
            ("61 ffff", -1),
            ("71 ffffffff", -1),
            ("72 3fc00000", 1.5),
            ("73 00000041", "A"),
            ("d0 00000005 00000001 40", [None]),
            ("f0 00000007 00000002 50 01 02", [1, 2]),
            ("e0 07 02 00 a3 01 64 50 07 08", [DescribedValue("d", 7), DescribedValue("d", 8)]),
            ("b1 00000001 41", "A"),
        ],
    )
    def test_every_width_is_read(self, raw: str, value: object) -> None:
        data = bytes.fromhex(raw.replace(" ", ""))
        if raw.startswith("e0"):
            data = bytes((0xE0, len(data) - 2)) + data[2:]
        assert decode(data) == (value, len(data))

    @pytest.mark.parametrize(
        "raw",
        [
            "",
            "00",
            "a1",
            "a105414141",
            "c0",
            "c00201",
            "c1030155 01",
            "d0ffffffff00000001",
            "3f",
            "a1 01 ff",
            "e0 05 ff 40",
        ],
    )
    def test_invalid_values_raise(self, raw: str) -> None:
        with pytest.raises(DecodeError):
            decode(bytes.fromhex(raw.replace(" ", "")))

    def test_nesting_is_limited(self) -> None:
        nested = b"\x45"
        for _ in range(60):
            nested = b"\xd0" + (len(nested) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + nested
        with pytest.raises(DecodeError, match="deep"):
            decode(nested)
        with pytest.raises(DecodeError):
            decode(b"\x00" * 5000)


class TestSections:
    def test_header_and_delivery_annotations_are_removed(self) -> None:
        header, annotations = section(s.HEADER, [True]), section(s.DELIVERY_ANNOTATIONS, {Symbol("x"): 1})
        assert bare_message(DATA) == (0, 0)
        assert bare_message(header + DATA) == (len(header), len(header))
        assert bare_message(annotations + DATA) == (0, len(annotations))
        assert bare_message(header + annotations + DATA) == (len(header), len(header) + len(annotations))

    def test_long_and_symbolic_descriptors_are_read(self) -> None:
        long = b"\x00\x80" + (s.HEADER).to_bytes(8, "big") + encode([True])
        symbolic = b"\x00" + encode(Symbol("amqp:data:binary")) + encode(b"x")
        assert [found.code for found in sections(long + symbolic)] == [s.HEADER, s.DATA]

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"x",
            b"\x00",
            b"\x00\x53",
            b"\x00\x53\x75",
            b"\x00\x53\x75\xa0\x05abc",
            b"\x00\x53\x79\x40",
            b"\x00\xa3\x01x\x40",
            b"\x00\x53\x70\x45",
            DATA[:-1],
        ],
    )
    def test_invalid_messages_raise(self, raw: bytes) -> None:
        with pytest.raises(DecodeError):
            bare_message(raw)

    def test_order_is_checked(self) -> None:
        with pytest.raises(DecodeError, match="order"):
            bare_message(section(s.HEADER, []) + section(s.HEADER, []) + DATA)

    def test_section_at_an_offset_is_read(self) -> None:
        assert section_at(b"??" + DATA, 2) == (s.DATA, 2, 5, 2 + len(DATA))


class TestPayloadOf:
    @pytest.mark.parametrize(
        ("bare", "payload"),
        [
            (DATA, b"payload"),
            (DATA + DATA, b"payloadpayload"),
            (section(s.DATA, bytes(300)), bytes(300)),
            (section(s.VALUE, "text"), b"text"),
            (section(s.VALUE, b"binary"), b"binary"),
            (section(s.VALUE, {"a": [1, None, 2.5, True]}), b'{"a":[1,null,2.5,true]}'),
            (section(s.VALUE, 7), b"7"),
            (section(s.SEQUENCE, [1, "a"]) + section(s.SEQUENCE, [2]), b'[[1,"a"],[2]]'),
        ],
    )
    def test_bodies_become_payloads(self, bare: bytes, payload: bytes) -> None:
        assert payload_of(bare) == (None, {}, payload)

    def test_properties_are_read(self) -> None:
        bare = section(s.MESSAGE_ANNOTATIONS, {Symbol("x-opt-a"): 1})
        bare += section(
            s.PROPERTIES,
            [Ulong(7), b"me", "a/b", "subject", "reply", b"\xff", Symbol("text/plain"), None, None, Timestamp(5)],
        )
        bare += section(s.APPLICATION_PROPERTIES, {"n": 1, "s": "x"}) + DATA
        content_type, properties, payload = payload_of(bare)
        assert content_type == "text/plain"
        assert payload == b"payload"
        assert properties == {
            "message-id": 7,
            "user-id": "me",
            "to": "a/b",
            "subject": "subject",
            "reply-to": "reply",
            "correlation-id": "ff",
            "creation-time": 5,
            "application-properties": {"n": 1, "s": "x"},
            "message-annotations": {"x-opt-a": 1},
        }
        json.dumps(properties)

    @pytest.mark.parametrize("raw", [b"garbage", DATA[:-1], section(s.PROPERTIES, {"a": 1}) + DATA, DATA + b"\x00"])
    def test_invalid_messages_raise(self, raw: bytes) -> None:
        with pytest.raises(DecodeError):
            payload_of(raw)

    def test_footer_is_left_out(self) -> None:
        assert payload_of(DATA + section(s.FOOTER, {Symbol("x"): 1}))[2] == b"payload"


class TestValuesAsJson:
    """Lists and maps of AMQP become valid JSON in another protocol, whatever they hold."""

    @pytest.mark.parametrize(
        ("raw", "text"),
        [
            ("7431800866", "21.50"), ("7478000000", "null"), ("747c000000", "null"),
            ("84b1c000000000086e", "-2158"), ("843180000000000866", "21.50"), ("84fc00000000000000", "null"),
            ("94303c0000000000000000000000000866", "21.50"), ("947c000000000000000000000000000000", "null"),
            ("82fff0000000000000", "null"), ("827ff8000000000000", "null"), ("727fc00000", "null"),
            ("823ff8000000000000", "1.5"), ("80ffffffffffffffff", "18446744073709551615"), ("7300000041", '"A"'),
            ("9812345678123456781234567812345678", '"12345678-1234-5678-1234-567812345678"'),
            ("a001ff", '"ff"'), ("a00161", '"a"'), ("8300000000000003e8", "1000"), ("00a3016441", "true"),
        ],
    )  # fmt: skip
    def test_every_type_has_a_json_value(self, raw: str, text: str) -> None:
        content = encode("v") + bytes.fromhex(raw)
        bare = b"\0Sw\xc1" + bytes((len(content) + 1, 2)) + content
        payload = payload_of(bare)[2]
        json.loads(payload, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert payload.decode() == f'{{"v":{text}}}'

    def test_single_decimal_is_a_number(self) -> None:
        assert payload_of(b"\0Sw" + bytes.fromhex("843180000000000866"))[2] == b"21.50"

    @pytest.mark.parametrize("raw", ["7431800866", "843180000000000866", "94303c0000000000000000000000000866"])
    def test_decimal_keeps_its_digits(self, raw: str) -> None:
        assert encode(decode(bytes.fromhex(raw))[0]).hex() == raw


class TestToAmqp:
    def test_amqp_message_passes_unchanged(self) -> None:
        header = section(s.HEADER, [True])
        run = Run("a", "d", AMQP | DURABLE | 1, header, [DATA, DATA + DATA])
        assert amqp_messages(run) == [header + DATA, header + DATA + DATA]
        assert amqp_messages(Run("a", "d", AMQP, b"", [DATA])) == [DATA]
        assert amqp_from_run(run, 1) == header + DATA + DATA

    def test_time_to_live_decreases_and_delivery_count_restarts(self) -> None:
        header = section(s.HEADER, [True, Ubyte(7), Uint(5000), True, Uint(3)])
        run = Run("a", "d", AMQP | 1, header, [DATA], received_at=1_000_000_000)
        out = amqp_messages(run, now_ns=3_000_000_000)[0]
        end, _ = bare_message(out)
        assert decode(out, 3)[0] == [True, 7, 3000]
        assert out[end:] == DATA
        late = amqp_messages(run, now_ns=10**12)[0]
        assert read_header(late[: bare_message(late)[0]]) == Header(durable=True, ttl_ms=0, priority=7)

    def test_header_of_any_size_is_read_and_only_usual_ones_are_cached(self) -> None:
        usual = encode(DescribedValue(Ulong(0x70), [True, Ubyte(7), Uint(9)]))
        assert len(usual) <= HEADER_USUAL_BYTES_MAX
        long = encode(DescribedValue(Ulong(0x70), [True, Ubyte(7), Uint(9), False, Uint(0), "x" * 40]))
        assert len(long) > HEADER_USUAL_BYTES_MAX
        _read_usual_header.cache_clear()
        for _ in range(2):
            assert read_header(usual) == read_header(long) == Header(durable=True, ttl_ms=9, priority=7)
        assert _read_usual_header.cache_info().currsize == 1
        for ttl in range(HEADERS_USUAL_MAX + 5):
            assert read_header(encode(DescribedValue(Ulong(0x70), [False, None, Uint(ttl)]))).ttl_ms == ttl
        assert _read_usual_header.cache_info().currsize == HEADERS_USUAL_MAX

    def test_mqtt_properties_are_translated(self) -> None:
        properties = Properties(
            message_expiry_interval_s=10,
            content_type="application/json",
            response_topic="reply/here",
            correlation_data=b"42",
            user_property=(("k", "v"),),
        )
        run = Run("plant/7", "d", 1 | DURABLE | RETAIN, encode_run(properties), [b"{}"], received_at=1_000_000_000)
        (out,) = amqp_messages(run, now_ns=3_000_000_000)
        end, start = bare_message(out)
        assert read_header(out[:end]) == Header(durable=True, ttl_ms=8000)
        found = parse_message(out[start:])
        assert found.annotations == {"x-opt-mqtt-qos": 1, "x-opt-retain-message": True}
        told, made_at = list(found.properties[:7]), list(found.properties[7:])
        assert told == [None, None, "plant/7", None, "reply/here", "42", "application/json"]
        assert made_at == [None, None, run.received_at // 1_000_000], "creation-time: when it came in"
        assert found.application == {"k": "v"}
        assert (found.body, found.is_text) == (b"{}", False)

    def test_payload_format_indicator_makes_a_string(self) -> None:
        raw = encode_run(Properties(payload_format_indicator=1))
        out = amqp_messages(Run("a", "d", 0, raw, ["ä".encode(), b"\xff"]))
        assert [parse_message(one).is_text for one in out] == [True, False]
        assert [parse_message(one).body for one in out] == ["ä".encode(), b"\xff"]


def user_properties(run: Run) -> list[tuple[str, str]]:
    return [pair for each in mqtt_runs(run) for pair in decode_run(each.properties).user_property]


class TestTable:
    """The table in the README of the folder holds in both directions."""

    TABLE = (ROOT / "edge/broker/message/README.md").read_text(encoding="utf-8")
    NAMES = re.findall(r"^\| (?:header )?`([a-z-]+)`[^|]*\| user property `\1`", TABLE, re.MULTILINE)
    VALUES: Mapping[str, tuple[object, str]] = {
        "message-id": (UUID(int=1), f"ID:AMQP_UUID:{UUID(int=1)}"),
        "subject": ("speed", "speed"),
        "content-encoding": (Symbol("gzip"), "gzip"),
        "group-id": ("line 1", "line 1"),
        "priority": (Ubyte(7), "7"),
    }

    def test_documented_table_matches_the_code(self) -> None:
        assert self.NAMES == [*AS_USER_PROPERTIES, PRIORITY] == list(self.VALUES)

    @pytest.mark.parametrize("name", VALUES)
    def test_properties_survive_both_directions(self, name: str) -> None:
        value, text = self.VALUES[name]
        fields = [value if each == name else None for each in PROPERTY_NAMES]
        header = section(s.HEADER, [False, value]) if name == PRIORITY else b""
        run = Run("a", "d", AMQP | 1, header, [section(s.PROPERTIES, fields) + DATA])
        assert user_properties(run) == [(name, text)]
        (back,) = amqp_messages(Run("a", "d", 1, encode_run(Properties(user_property=((name, text),))), [b"x"]))
        end, start = bare_message(back)
        found = (
            read_header(back[:end]).priority if name == PRIORITY else properties_of(back[start:])[fields.index(value)]
        )
        assert found == value

    def test_repeated_user_properties_are_preserved(self) -> None:
        pairs = (("a", "1"), ("b", "2"), ("a", "3"), ("a", "1"))
        (message,) = amqp_messages(Run("a", "d", 1, encode_run(Properties(user_property=pairs)), [b"x"]))
        end, start = bare_message(message)
        assert parse_message(message[start:]).application == {"a": "1", "b": "2"}
        again = Run("a", "d", AMQP | 1, message[:end], [message[start:]])
        assert tuple(user_properties(again)) == pairs

    def test_values_of_applications_are_not_quoted(self) -> None:
        application = {"u": UUID(int=1), "b": b"\xff", "t": b"text", "n": 1, "l": [1, "x"], "none": None}
        run = Run("a", "d", AMQP | 1, b"", [section(s.APPLICATION_PROPERTIES, application) + DATA])
        expected = {"u": str(UUID(int=1)), "b": "ff", "t": "text", "n": "1", "l": '[1,"x"]', "none": "null"}
        assert dict(user_properties(run)) == expected

    def test_dead_letter_carries_the_reason(self) -> None:
        body = section(s.PROPERTIES, [None, None, None, "speed"]) + DATA
        (dead,) = dead_letter_runs(
            Stored(0, 7, Run("queue/a", "d", AMQP | 1, b"", [body])), "queue/dead", LossReason.REJECTED
        )
        found = dict(user_properties(dead))
        assert found.pop("subject") == "speed"
        assert found == {
            "x-opt-waypost-dead-reason": "rejected",
            "x-opt-waypost-dead-from": "queue/a",
            "x-opt-waypost-dead-sequence": "7",
        }

    @pytest.mark.parametrize("text", ["10", "", "high", "-1", "٣"])
    def test_invalid_priority_stays_an_application_property(self, text: str) -> None:
        run = Run("a", "d", 1, encode_run(Properties(user_property=((PRIORITY, text),))), [b"x"])
        (message,) = amqp_messages(run)
        end, start = bare_message(message)
        assert read_header(message[:end]).priority == 4
        assert parse_message(message[start:]).application == {PRIORITY: text}


class TestToMqtt:
    def test_properties_are_translated(self) -> None:
        body = section(s.PROPERTIES, [None, None, None, None, "reply/x", "id-1", Symbol("text/plain")])
        body += section(s.APPLICATION_PROPERTIES, {"s": "x", "n": 2}) + section(s.VALUE, "text")
        run = Run("a", "d", AMQP | DURABLE | 1, section(s.HEADER, [True, None, Uint(1500)]), [body])
        (out,) = mqtt_runs(run)
        assert (out.flags, out.bodies) == (DURABLE | 1, [b"text"])
        assert decode_run(out.properties) == Properties(
            payload_format_indicator=1,
            message_expiry_interval_s=2,
            content_type="text/plain",
            response_topic="reply/x",
            correlation_data=b"id-1",
            user_property=(("s", "x"), ("n", "2")),
        )

    @pytest.mark.parametrize(
        ("identifier", "data"),
        [
            ("c-1", b"c-1"),
            (b"\xff\x00", b"\xff\x00"),
            (Ulong(0), b"ID:AMQP_ULONG:0"),
            (Ulong(2**64 - 1), b"ID:AMQP_ULONG:18446744073709551615"),
            (UUID(int=7), b"ID:AMQP_UUID:00000000-0000-0000-0000-000000000007"),
            ("ID:AMQP_ULONG:18446744073709551616", b"ID:AMQP_ULONG:18446744073709551616"),
            ("ID:AMQP_ULONG:-1", b"ID:AMQP_ULONG:-1"),
            ("ID:AMQP_ULONG:007", b"ID:AMQP_ULONG:007"),
            ("ID:AMQP_UUID:7", b"ID:AMQP_UUID:7"),
        ],
    )
    @pytest.mark.parametrize("field", [0, 5])
    def test_answer_refers_to_the_identifier_of_the_request(
        self, identifier: str | bytes | Ulong | UUID, data: bytes, field: int
    ) -> None:
        """An answer repeats the correlation-id of its request, else the message-id, with the type of the original
        (section 3.2.4)."""
        told: list[Any] = [None, None, None, None, "reply/x", None]
        told[field] = identifier
        (request,) = mqtt_runs(Run("a", "d", AMQP | 1, b"", [section(s.PROPERTIES, told) + DATA]))
        assert decode_run(request.properties).correlation_data == data
        answer = Run("reply/x", "d", 1, encode_run(Properties(correlation_data=data)), [b"pong"])
        (out,) = amqp_messages(answer)
        assert parse_message(out).properties[5] == identifier
        assert encode(identifier) in out

    def test_message_without_a_reply_address_has_no_correlation(self) -> None:
        body = section(s.PROPERTIES, ["message-1", None, None, "subject"]) + DATA
        (run,) = mqtt_runs(Run("a", "d", AMQP | 1, b"", [body]))
        assert decode_run(run.properties).correlation_data is None

    def test_different_properties_make_separate_runs(self) -> None:
        def body(correlation: str) -> bytes:
            properties = [None, None, None, None, "reply", correlation, Symbol("text/plain")]
            return section(s.PROPERTIES, properties) + DATA

        run = Run("a", "d", AMQP | 1, b"", [body("1"), body("1"), body("2")])
        assert [len(part) for part in mqtt_runs(run)] == [2, 1]
        assert [decode_run(part.properties).correlation_data for part in mqtt_runs(run)] == [b"1", b"2"]

    def test_unreadable_or_untranslatable_messages_are_refused(self) -> None:
        odd = section(s.PROPERTIES, [None, None, None, None, "a/#", "x" * 70_000, Symbol("y" * 70_000)]) + DATA
        out = mqtt_runs(Run("a", "d", AMQP, b"", [b"garbage", odd]))
        assert [body for part in out for body in part.bodies] == [b"garbage", b"payload"]
        assert all(part.properties == b"" for part in out)


class TestIncoming:
    def test_address_is_read(self) -> None:
        assert address_of(properties_of(section(s.PROPERTIES, [None, None, "queue/a"]) + DATA)) == "queue/a"
        assert address_of(properties_of(section(s.PROPERTIES, []) + DATA)) is None
        assert address_of(properties_of(DATA)) is None

    def test_flags_are_read(self) -> None:
        def annotated(**annotations: object) -> bytes:
            return (
                section(s.MESSAGE_ANNOTATIONS, {Symbol(k.replace("_", "-")): v for k, v in annotations.items()}) + DATA
            )

        assert flags_of(DATA, settled=True) == 0
        assert flags_of(DATA, settled=False) == 1
        assert flags_of(annotated(x_opt_mqtt_qos=Ubyte(2)), settled=False) == 2
        assert flags_of(annotated(x_opt_mqtt_qos=Ubyte(2)), settled=True) == 0
        assert flags_of(annotated(x_opt_retain_message=True), settled=False) == 1 | RETAIN
        assert flags_of(annotated(x_opt_retain_message=1), settled=False) == 1
