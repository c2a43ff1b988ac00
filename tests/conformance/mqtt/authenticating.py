"""Scenarios of enhanced authentication (MQTT 5 section 4.12), for a server with one method, `WORD`.

The server requests a word with AUTH; ``sesame`` is correct. A real gateway has other methods, so these run against the
machine.
"""

from __future__ import annotations

from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.mqtt import packets as p
from tests.conformance.mqtt.steps import Scenario, Step, closed, expect, send

WORD = "word"


def block(data: bytes | None = None, method: str | None = WORD) -> Properties:
    return Properties(authentication_method=method, authentication_data=data)


def answer(data: bytes, method: str | None = WORD, reason: R = R.CONTINUE_AUTHENTICATION) -> p.Auth:
    return p.Auth(reason, block(data, method))


CONNECT = p.Connect("a", 5, properties=block())
ASKED: tuple[Step, ...] = (
    send("a", CONNECT),
    expect("a", p.Auth(R.CONTINUE_AUTHENTICATION, block(b"the word?"))),
)
OPENED: tuple[Step, ...] = (
    *ASKED,
    send("a", answer(b"sesame")),
    expect("a", p.ConnAck(properties=block(b"welcome"))),
)
AGAIN = answer(b"", reason=R.RE_AUTHENTICATE)


ASKED_AGAIN: tuple[Step, ...] = (
    *OPENED,
    send("a", AGAIN),
    expect("a", p.Auth(R.CONTINUE_AUTHENTICATION, block(b"the word?"))),
)


def violated(name: str, statements: str, before: tuple[Step, ...], packet: p.Packet, *reasons: R) -> Scenario:
    return Scenario(name, {5: statements}, (*before, send("a", packet), closed("a", *(reasons or (R.PROTOCOL_ERROR,)))))


AUTHENTICATING = [
    Scenario("the server asks before CONNACK", {5: "4.12.0-2 4.12.0-3 4.12.0-5"}, OPENED),
    Scenario(
        "the right word in CONNECT",
        {5: "4.12.0-5"},
        (
            send("a", p.Connect("a", 5, properties=block(b"sesame"))),
            expect("a", p.ConnAck(properties=block(b"welcome"))),
        ),
    ),
    Scenario(
        "DISCONNECT in place of an answer",
        {5: "3.1.2-30"},
        (*ASKED, send("a", p.Disconnect()), closed("a")),
    ),
    Scenario(
        "an answer to what was not asked yet waits",
        {5: "4.12.0-3"},
        (
            send("a", CONNECT, answer(b"sesame"), p.PingReq()),
            expect("a", p.Auth(R.CONTINUE_AUTHENTICATION, block(b"the word?"))),
            expect("a", p.ConnAck(properties=block(b"welcome"))),
            expect("a", p.PingResp()),
        ),
    ),
    violated("the wrong word", "4.12.0-4", ASKED, answer(b"barley"), R.NOT_AUTHORIZED),
    violated("PUBLISH before CONNACK", "3.1.2-30", ASKED, p.Publish("t", b"x")),
    violated("PINGREQ before CONNACK", "3.1.2-30", ASKED, p.PingReq()),
    violated("an answer of another method", "4.12.0-5", ASKED, answer(b"sesame", "other")),
    violated("an answer without a method", "4.12.0-5", ASKED, answer(b"sesame", None)),
    violated("a client that says success", "4.12.0-3", ASKED, answer(b"sesame", reason=R.SUCCESS)),
    violated("re-authentication before CONNACK", "4.12.1-1", ASKED, AGAIN),
    violated("AUTH when nothing was asked", "4.12.0-3", OPENED, answer(b"sesame")),
    violated("re-authentication with another method", "4.12.1-1", OPENED, answer(b"", "other", R.RE_AUTHENTICATE)),
    violated("re-authentication twice at once", "4.12.1-1", ASKED_AGAIN, AGAIN),
    Scenario(
        "re-authentication, and other packets meanwhile",
        {5: "4.12.1-1 4.12.0-5"},
        (
            *OPENED,
            send("a", AGAIN, p.PingReq()),
            expect("a", p.Auth(R.CONTINUE_AUTHENTICATION, block(b"the word?")), p.PingResp()),
            send("a", answer(b"sesame")),
            expect("a", p.Auth(R.SUCCESS, block(b"welcome back"))),
            send("a", AGAIN),
            expect("a", p.Auth(R.CONTINUE_AUTHENTICATION, block(b"the word?"))),
        ),
    ),
    violated("re-authentication that fails", "4.12.1-2", ASKED_AGAIN, answer(b"barley"), R.NOT_AUTHORIZED),
]
