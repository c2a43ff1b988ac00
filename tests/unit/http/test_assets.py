"""Static files of a console, and compression of the API's answers."""

from __future__ import annotations

import asyncio
import gzip
import re
from importlib import resources
from pathlib import Path
from posixpath import dirname, join, normpath

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp

from edge.broker.http.assets import StaticAssets
from edge.broker.http.compression import COMPRESSED_BYTES_MIN, Compression
from edge.broker.http.page import ConsolePage
from edge.broker.http.route import HttpRoute

GATEWAY = [resources.files("bridge.console"), resources.files("edge.appliance.console").joinpath("pages")]
HUB = [resources.files("bridge.console"), resources.files("cloud.console").joinpath("pages")]
FIRST_LOAD_BYTES_MAX = 70_000
"""Bytes of a first visit on the wire: an uplink over GSM takes seconds for more."""
STATIC_IMPORT = re.compile(r'(?:\bfrom|^import)\s*"(\.[^"]+)"', re.MULTILINE)
"""Import of a module that is loaded at once. Pages are imported when they are opened."""


def get(app: ASGIApp, path: str, encoding: str = "gzip") -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gw") as client:
            return await client.get(path, headers={"Accept-Encoding": encoding})

    return asyncio.run(ask())


def assets_of(folder: Path, files: dict[str, str]) -> StaticAssets:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return StaticAssets([folder])


def test_file_is_cached_for_ever_under_an_address_that_changes_with_any_file(tmp_path: Path) -> None:
    first = assets_of(tmp_path / "a", {"page.js": "1", "pages/more.css": "2"})
    answer = get(Starlette(routes=first.routes), f"{first.base}pages/more.css")
    assert (answer.status_code, answer.text) == (200, "2")
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].startswith("text/css")
    second = assets_of(tmp_path / "b", {"page.js": "1", "pages/more.css": "3"})
    assert second.base != first.base
    assert get(Starlette(routes=second.routes), f"{first.base}page.js").status_code == 404


@pytest.mark.parametrize("path", ["", "missing.js", "../secret.js", "page.py", "%2e%2e/page.js"])
def test_other_files_are_not_served(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.js").write_text("secret")
    assets = assets_of(tmp_path / "files", {"page.js": "1", "page.py": "code"})
    assert get(Starlette(routes=assets.routes), assets.base + path).status_code == 404


def test_client_without_gzip_gets_the_file_itself(tmp_path: Path) -> None:
    assets = assets_of(tmp_path, {"page.js": "text " * 100})
    answer = get(Starlette(routes=assets.routes), f"{assets.base}page.js", "identity")
    assert "content-encoding" not in answer.headers
    assert answer.text == "text " * 100


def test_import_of_a_package_is_resolved_when_it_is_served(tmp_path: Path) -> None:
    assets = assets_of(tmp_path, {"hooks.mjs": 'import{options as n}from"preact";from "./own.js"'})
    text = get(Starlette(routes=assets.routes), f"{assets.base}hooks.mjs").text
    assert text == 'import{options as n}from"./preact.mjs";from "./own.js"'


@pytest.mark.parametrize(("folders", "script"), [(GATEWAY, "gateway.js"), (HUB, "hub.js")])
def test_first_visit_of_a_console_is_small(folders: list[Path], script: str) -> None:
    assets = StaticAssets(folders)
    page = ConsolePage("x", assets, script)
    assert f'src="{assets.base}{script}"' in page._text
    files = {name.removeprefix(assets.base): content for name, content in assets._files.items()}
    loaded = {"icon.svg", "waypost.css", "vendor/uplot.css", "vendor/uplot.js", script}
    ahead = [script]
    while ahead:
        module = ahead.pop()
        imported = STATIC_IMPORT.findall(gzip.decompress(files[module]).decode())
        found = {normpath(join(dirname(module), name)) for name in imported} - loaded
        ahead += found
        loaded |= found
    assert len(loaded) > 10
    assert sum(len(files[name]) for name in loaded) <= FIRST_LOAD_BYTES_MAX


ROWS = {"rows": ["the same row"] * 500}


class TestCompression:
    def answer(self, response: Response, path: str = "/api/v1/rows", encoding: str = "gzip") -> httpx.Response:
        async def respond(_request: Request) -> Response:
            return response

        app = Starlette(routes=[HttpRoute(path, respond, methods=("GET",))])
        app.add_middleware(Compression)
        return get(app, path, encoding)

    def test_table_shrinks(self) -> None:
        answer = self.answer(JSONResponse(ROWS))
        assert answer.headers["content-encoding"] == "gzip"
        assert int(answer.headers["content-length"]) < 500
        assert answer.headers["vary"] == "Accept-Encoding"
        assert answer.json() == ROWS

    def test_client_that_does_not_accept_it_gets_plain_json(self) -> None:
        assert "content-encoding" not in self.answer(JSONResponse(ROWS), encoding="identity").headers

    def test_small_answer_stays_as_it_is(self) -> None:
        body = b"1" * (COMPRESSED_BYTES_MIN - 1)
        assert "content-encoding" not in self.answer(Response(body, media_type="application/json")).headers

    def test_message_of_a_device_stays_as_it_is(self) -> None:
        assert "content-encoding" not in self.answer(JSONResponse(ROWS), path="/t/rows").headers

    def test_compressed_answer_is_not_compressed_again(self) -> None:
        body = gzip.compress(b"x" * 100_000)
        response = Response(body, media_type="application/json", headers={"Content-Encoding": "gzip"})
        assert self.answer(response).content == b"x" * 100_000

    def test_stream_passes_at_once(self) -> None:
        async def lines() -> object:
            yield b"1\n" * COMPRESSED_BYTES_MIN
            yield b"2\n"

        answer = self.answer(StreamingResponse(lines(), media_type="application/json"))  # type: ignore[arg-type]
        assert "content-encoding" not in answer.headers
        assert answer.content.endswith(b"2\n")
