"""Served description of the HTTP interface: compressed once, and sent once to each client."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import httpx
import pytest

from edge.broker.http.access import HttpAccess
from edge.broker.http.application import application
from edge.broker.http.openapi import FILE, openapi_route

PATH = "/api/v1/openapi.json"
TEXT = json.dumps({"openapi": "3.1.0", "paths": {f"/{number}": {} for number in range(1_000)}})


def test_description_is_compressed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FILE).write_text(TEXT)
    compressed: list[int] = []

    original = gzip.compress

    def compress(content: bytes, *more: int, mtime: float) -> bytes:
        compressed.append(len(content))
        return original(content, *more, mtime=mtime)

    monkeypatch.setattr(gzip, "compress", compress)
    app = application([openapi_route(tmp_path)], HttpAccess())

    async def ask() -> None:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gw") as client:
            for _ in range(3):
                answer = await client.get(PATH, headers={"Accept-Encoding": "gzip"})
                assert (answer.headers["content-encoding"], answer.text) == ("gzip", TEXT)
            assert compressed == [len(TEXT)]
            plain = await client.get(PATH, headers={"Accept-Encoding": "identity"})
            assert ("content-encoding" in plain.headers, plain.text) == (False, TEXT)
            again = await client.get(PATH, headers={"If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == answer.headers["etag"]

    asyncio.run(ask())
