"""Bearer tokens of a test's issuer: a gateway that accepts them, and an AMQP client that shows them."""

from __future__ import annotations

import json
import socket
import time
from typing import Any, Final

from bridge.amqp_values import Symbol
from bridge.engine import Closed, Engine
from bridge.sasl import SaslClient, bearer
from bridge.sasl.layer import INIT, RESPONSE
from tests.support.configured_gateway import address, resources
from tests.support.issuer import AUDIENCE, TestIssuer
from tests.support.machines import take_all

SCOPE: Final = "openid send:up/# recv:up/# send:jobs recv:jobs"


def resources_with(issuer: TestIssuer, more: str = "") -> str:
    """Return a gateway that accepts the issuer's tokens, with the queue ``jobs``. `more`: further fields of `oidc`."""
    oidc = f'{{issuer: "{issuer.url}", audience: {AUDIENCE}{more}}}'
    return resources(address("jobs", "jobs", "queue"), space=f"authenticationService: {{name: external, oidc: {oidc}}}")


class BearerClient(SaslClient):
    """Client side of SASL OAUTHBEARER."""

    def __init__(self, token: str, older_as: str | None = None) -> None:
        """`older_as`: the user name for XOAUTH2."""
        super().__init__("token", "")
        self._token = token
        self._older_as = older_as

    def _choose(self, offered: object) -> None:
        assert isinstance(offered, list)
        mechanism = bearer.MECHANISM if self._older_as is None else bearer.OLDER_MECHANISM
        assert mechanism in [str(name) for name in offered]
        older = f"user={self._older_as}\x01auth=Bearer {self._token}\x01\x01".encode()
        self._send(INIT, [Symbol(mechanism), bearer.message(self._token) if self._older_as is None else older])

    def _on_frame(self, code: int, fields: Any) -> None:
        if code == 0x42:
            assert self._older_as is None
            assert json.loads(fields[0])["status"] == "invalid_token"
            self._send(RESPONSE, [b"\x01"])
        else:
            super()._on_frame(code, fields)


def until_closed(
    connection: socket.socket, token: str, hostname: str | None = None, *, older_as: str | None = None
) -> tuple[list[Any], str | None]:
    """Open with OAUTHBEARER or XOAUTH2; return the events until the close, and the reason of a refusal."""
    sasl = BearerClient(token, older_as)
    engine = Engine(container_id="c", server=False, hostname=hostname, sasl=sasl, now=time.monotonic())
    engine.open()
    found: list[Any] = []
    while not any(isinstance(event, Closed) for event in found):
        data = engine.data_to_send()
        if data:
            connection.sendall(data)
        read = connection.recv(65_536)
        found += take_all(engine, read, time.monotonic()) if read else engine.receive_eof(time.monotonic())
    return found, sasl.failure
