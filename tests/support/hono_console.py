"""Console of a hub in memory, with the tenants, devices and credentials of the management API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from cloud.hub.devices.credentials import credentials_answer, read_credentials
from cloud.hub.devices.tenants import DeviceTenantDocument
from edge.output.errors import CommandError
from edge.remote.client import ConsoleClient


class MemoryAnswer:
    """Answer to a request."""

    def __init__(self, document: Any = None, revision: int = 0) -> None:
        self.content = document
        self.headers = {"ETag": f'"{revision}"'}

    def __enter__(self) -> MemoryAnswer:
        return self

    def __exit__(self, *_: object) -> None: ...

    def read(self) -> bytes:
        return b""


class MemoryConsole(ConsoleClient):
    """Console that keeps documents by their path, and raises the errors of `faults`."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self.documents: dict[str, Any] = {}
        self.revisions: dict[str, int] = {}
        self.faults: dict[tuple[str, str], str] = {}
        """Codes of errors by method and path."""
        self.changes: list[tuple[str, str]] = []
        self._revision = 0

    @contextmanager
    def keeping(self) -> Iterator[ConsoleClient]:
        yield self

    def open(self, path: str, /, *, method: str = "GET", body: Any = None, **given: Any) -> Any:
        if fault := self.faults.get((method, path)):
            raise CommandError(fault, error=fault)
        if method == "POST" and path in self.documents:
            raise CommandError("there already", error="conflict")
        if method == "GET":
            return self._found(path)
        self.put(path, _without_secrets(body) if path.startswith("credentials/") else body)
        if path.startswith("devices/"):
            self.put(path.replace("devices", "credentials", 1), [])
            self.revisions[path.replace("devices", "credentials", 1)] = self.revisions[path]
        self.changes.append((method, path))
        return MemoryAnswer({}, self.revisions[path])

    def document(self, answer: Any, method: str) -> Any:
        return answer.content

    def ask(self, path: str, /, **given: Any) -> Any:
        return self.open(path, **given).content

    def put(self, path: str, document: Any) -> None:
        """Keep a document as another user."""
        self._revision += 1
        self.documents[path], self.revisions[path] = document, self._revision

    def _found(self, path: str) -> MemoryAnswer:
        if path.count("/") == 1 and path.startswith("devices/"):
            rows = {name.split("/")[2]: each for name, each in self.documents.items() if name.startswith(f"{path}/")}
            return MemoryAnswer({"result": [{"id": name, **_shown(rows[name])} for name in sorted(rows)]})
        if path not in self.documents:
            raise CommandError(f"no {path}", error="not-found")
        document = self.documents[path]
        return MemoryAnswer(document if isinstance(document, list) else _shown(document), self.revisions[path])


def _without_secrets(body: Any) -> list[dict[str, Any]]:
    """Return credentials as a hub shows them."""
    return credentials_answer(read_credentials(msgspec.json.encode(body)).merge(DeviceTenantDocument(), ()))


def _shown(document: dict[str, Any]) -> dict[str, Any]:
    return {"enabled": True, **document, "status": {"created": "2026-01-01T00:00:00Z"}}
