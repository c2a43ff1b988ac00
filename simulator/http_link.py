"""One HTTP/1.1 connection of a simulated device, kept alive, without a thread."""

from __future__ import annotations

import asyncio
import base64
import ssl
from typing import Final

from simulator.links import DeviceLinkFault, LinkLogin, LinkLost, LinkPlace

ANSWER_S: Final = 60.0


class HttpLink:
    """Connection of one device to its gateway. Methods raise `LinkLost`."""

    def __init__(self, place: LinkPlace, login: LinkLogin) -> None:
        self._place = place
        user = login.user or login.device
        self._login = base64.b64encode(f"{user}:{login.password}".encode()).decode()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def ask(self, method: str, path: str, body: bytes, fields: dict[str, str]) -> tuple[int, bytes]:
        """Return status and content of an answer."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._ask(method, path, body, fields)
        except TimeoutError:
            fault, words = DeviceLinkFault.NO_ANSWER, ""
        except ssl.SSLCertVerificationError as error:
            fault, words = DeviceLinkFault.NOT_TRUSTED, error.verify_message
        except (OSError, EOFError, ValueError) as error:
            fault, words = DeviceLinkFault.CLOSED, f"{type(error).__name__}: {error}"
        self.close()
        raise LinkLost(fault, words)

    async def _ask(self, method: str, path: str, body: bytes, fields: dict[str, str]) -> tuple[int, bytes]:
        host, port, tls = self._place
        if self._reader is None or self._writer is None or self._writer.is_closing() or self._reader.at_eof():
            self._reader, self._writer = await asyncio.open_connection(host, port, ssl=tls)
        given = {
            "Host": f"{host}:{port}",
            "Authorization": f"Basic {self._login}",
            "Content-Length": str(len(body)),
            **({"Content-Type": "application/json"} if body else {}),
            **fields,
        }
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", ""]
        self._writer.write("\r\n".join(lines).encode() + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        names = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        content = await self._reader.readexactly(int(names.get("content-length", "0")))
        if names.get("connection") == "close":
            self.close()
        return int(head[0].split()[1]), content
