"""Two engines and the bytes between them; the clock moves only when a test moves it."""

from __future__ import annotations

from typing import Any

from bridge.engine import Attached, Engine, Event, Link, PeerOpened
from bridge.sasl import SaslClient, SaslServer
from tests.support.machines import take_all

NOW = 100.0


def message(payload: bytes, *, durable: bool = False) -> bytes:
    header = b"\x00\x53\x70\xc0\x02\x01\x41" if durable else b""
    return header + b"\x00\x53\x75\xb0" + len(payload).to_bytes(4, "big") + payload


def of_kind(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


class Pipe:
    """A client and a server engine; `turn` carries bytes both ways until no side has any left."""

    def __init__(
        self,
        *,
        client: dict[str, Any] | None = None,
        server: dict[str, Any] | None = None,
        sasl: tuple[SaslClient, SaslServer] | None = None,
        open_both: bool = True,
    ) -> None:
        client_sasl, server_sasl = sasl if sasl is not None else (SaslClient(), None)
        self.client = Engine(container_id="client", server=False, sasl=client_sasl, **(client or {}))
        self.server = Engine(container_id="server", server=True, sasl=server_sasl, **(server or {}))
        self.sent: list[bytes] = []
        """Bytes the client sent, by turn."""
        self.at_client: list[Event] = []
        self.at_server: list[Event] = []
        self.client.open()
        if open_both:
            self.turn()
            self.server.open()
            self.turn()
            assert of_kind(self.at_client, PeerOpened)
            self.forget()

    def turn(self, now: float = NOW, chunk: int = 1 << 20) -> None:
        for _ in range(100):
            up, down = self.client.data_to_send(), self.server.data_to_send()
            self.sent.append(up)
            if not up and not down:
                return
            for i in range(0, len(up), chunk):
                self.at_server += take_all(self.server, up[i : i + chunk], now)
            for i in range(0, len(down), chunk):
                self.at_client += take_all(self.client, down[i : i + chunk], now)
        raise AssertionError("the two never come to rest")

    def forget(self) -> None:
        self.at_client.clear()
        self.at_server.clear()

    def sender(self, address: str = "queue/a", credit: int = 10, **attach: Any) -> tuple[Link, Link]:
        """Attach a link from client to server; return (the client's, the server's)."""
        mine = self.client.attach_sender("sender", address, **attach)
        self.turn()
        theirs = of_kind(self.at_server, Attached)[-1].link
        self.server.accept(theirs)
        self.server.grant(theirs, credit)
        self.turn()
        self.forget()
        return mine, theirs

    def receiver(self, address: str = "queue/a", credit: int = 10, **attach: Any) -> tuple[Link, Link]:
        """Attach a link from server to client; return (the client's, the server's)."""
        mine = self.client.attach_receiver("receiver", address, **attach)
        self.turn()
        theirs = of_kind(self.at_server, Attached)[-1].link
        self.server.accept(theirs)
        self.client.grant(mine, credit)
        self.turn()
        self.forget()
        return mine, theirs


def attach_links(pipe: Pipe, count: int) -> list[tuple[Link, Link]]:
    """Attach `count` links from client to server, with credit; return (the client's, the server's)."""
    mine = [pipe.client.attach_sender(f"l{i}", f"a/{i}") for i in range(count)]
    pipe.turn()
    theirs = [event.link for event in of_kind(pipe.at_server, Attached)]
    for link in theirs:
        pipe.server.accept(link)
        pipe.server.grant(link, 100)
    pipe.turn()
    pipe.forget()
    return list(zip(mine, theirs, strict=True))
