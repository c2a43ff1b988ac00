"""The served OpenAPI documents: up to date, valid, and complete."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

import pytest

from docs.generate import openapi, source
from docs.generate.http_api import METHODS
from tests.support.openapi import check_openapi

_READERS = frozenset(("read_document", "_document", "_body", "_selection"))
"""Functions that read the document of a body."""


@pytest.mark.parametrize("path", openapi.FILES)
def test_file_is_current(path: str) -> None:
    assert openapi.FILES[path].read_text() == openapi.encoded(path), "run `python -m docs.generate.openapi`"


@pytest.mark.parametrize("path", openapi.FILES)
def test_document_follows_the_standard(path: str) -> None:
    check_openapi(json.loads(openapi.FILES[path].read_text()))


@pytest.mark.parametrize("path", openapi.FILES)
def test_operations_have_names_and_typed_answers(path: str) -> None:
    api = json.loads(openapi.FILES[path].read_text())
    names = []
    for place, item in api["paths"].items():
        for method in METHODS:
            if (operation := item.get(method)) is None:
                continue
            names.append(operation["operationId"])
            if place.startswith("/api/"):
                done = [each for status, each in operation["responses"].items() if status[0] == "2"]
                assert all("content" in each for each in done), f"add x-answer to {method} {place} in {path}"
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", openapi.FILES)
def test_every_document_that_is_read_is_described(path: str) -> None:
    api = json.loads(openapi.FILES[path].read_text())
    folders = ("edge/appliance",) if path == openapi.GATEWAY else ("cloud/hub",)
    assert set(_read(*folders)) <= set(api["components"]["schemas"])


def _read(*folders: str) -> Iterator[str]:
    """Yield the classes of documents that endpoints read from bodies."""
    for path in source.sources(*folders):
        for node in ast.walk(source.tree(path)):
            match node:
                case ast.Call(func=ast.Name(id=name), args=[ast.Name(id="request"), ast.Name(id=kind), *_]):
                    if name in _READERS and kind != "kind":
                        yield kind
