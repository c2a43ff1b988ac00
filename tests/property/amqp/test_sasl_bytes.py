"""Any bytes to a SASL server that checks credentials: no exception escapes, no login succeeds, memory stays bounded."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.amqp_values import DescribedValue, Symbol, Ulong, encode
from bridge.sasl import CredentialAnswer, SaslServer
from bridge.sasl.bearer import BearerError, read
from bridge.sasl.layer import EARLY_BYTES_MAX, FRAME_BYTES_MAX, SASL_HEADER
from bridge.sasl.scram import ScramKeys, ScramVerifier, derive

SALT = bytes(16)
KEYS: ScramKeys = derive("s3cret", SALT, 1)


class Credentials:
    """Refuses every password, sometimes later."""

    def __init__(self) -> None:
        self.later: list[CredentialAnswer] = []

    @property
    def mechanisms(self) -> frozenset[str]:
        return frozenset(("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"))

    def plain(self, username: str, password: bytes, answer: CredentialAnswer) -> None:
        if len(password) % 2:
            self.later.append(answer)
        else:
            answer(None)

    def bearer(self, message: bytes, answer: CredentialAnswer) -> None:
        try:
            shown = read(message)
        except BearerError:
            answer(None)
        else:
            self.plain(shown.authority, shown.token, answer)

    def scram(self, username: str) -> ScramVerifier | None:
        return ScramVerifier(SALT, 1, [KEYS]) if username != "late" else None

    def failed(self, username: str) -> None:
        pass

    def succeeded(self, username: str) -> str:
        return username


def frame(code: int, *fields: object) -> bytes:
    body = encode(DescribedValue(Ulong(code), list(fields)))
    return struct.pack(">IBBH", len(body) + 8, 2, 1, 0) + body


TEXTS = st.lists(
    st.sampled_from(
        [
            "n,,",
            "n=user",
            "n=late",
            "r=",
            "r=x",
            ",",
            "p=",
            "p=AAAA",
            "c=biws",
            "=",
            "\u00fc",
            "\0",
            "\1",
            "auth=Bearer ",
            "x",
        ]
    ),
    max_size=6,
)
RESPONSES = st.one_of(st.binary(max_size=60), TEXTS.map(lambda parts: "".join(parts).encode()))
MECHANISMS = st.sampled_from(["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "ANONYMOUS", "EXTERNAL", "X"])
FRAMES = st.one_of(
    st.builds(lambda name, response: frame(0x41, Symbol(name), response), MECHANISMS, RESPONSES),
    st.builds(lambda response: frame(0x43, response), RESPONSES),
    st.builds(frame, st.integers(0x3F, 0x46)),
    st.binary(max_size=40),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(FRAMES, max_size=5), st.integers(1, 50), st.booleans())
def test_no_exception_escapes_and_no_login_succeeds(frames: list[bytes], chunk: int, answered: bool) -> None:
    asked = Credentials()
    server = SaslServer(credentials=asked)
    data = SASL_HEADER + b"".join(frames)
    for i in range(0, len(data), chunk):
        server.receive(data[i : i + chunk])
        assert len(server._input) <= EARLY_BYTES_MAX + FRAME_BYTES_MAX
        if answered and asked.later:
            asked.later.pop()(None)
    assert not server.done
    assert server.identity is None
