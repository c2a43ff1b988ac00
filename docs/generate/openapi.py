"""OpenAPI documents that gateways and hubs serve, from the descriptions of operations and the types of the code:
``python -m docs.generate.openapi``.

An operation names its documents by their classes: `x-body` and `x-answer`, with ``[]`` after a list of them,
``{list: […]}`` for a list with several kinds, or a media type for what is not JSON. Fields get the text that is below
them in the code.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from docs.generate import source
from docs.generate.http_api import GATEWAY, HUB, METHODS, document

FILES: Final[Mapping[str, Path]] = {
    GATEWAY: source.ROOT / "edge/appliance/console/openapi.json",
    HUB: source.ROOT / "cloud/console/openapi.json",
}
"""Served file of each description."""
FOLDERS: Final[Mapping[str, tuple[str, ...]]] = {
    GATEWAY: ("bridge", "edge"),
    HUB: ("bridge", "edge/broker", "edge/health", "cloud"),
}
"""Folders with the classes of each description."""
ERROR: Final = "ProblemDocument"
"""Class of the documents of errors."""
_JSON: Final = "application/json"
_ERRORS: Final = "application/problem+json"
"""Media type of errors."""
_ERROR: Final = "#/components/responses/Error"
_WITHOUT_KEY: Final = frozenset(
    ("/api/v1/session", "/api/v1/session/link", "/api/v1/plans", "/api/v1/commands/rehearsal")
)
"""Paths of a hub where POST changes nothing, or signs in."""
_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "A request that is repeated with its key is done once. Another one with this key is refused (422).",
    "schema": {"type": "string", "maxLength": 255},
}
_REFERENCE: Final = "#/components/schemas/"
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")


class OpenApiError(ValueError):
    """The description names something that does not exist."""


def openapi(path: str) -> dict[str, Any]:
    """Return the OpenAPI document of a description."""
    api: dict[str, Any] = json.loads(json.dumps(document(path)))  # parts that YAML shares become separate
    classes = _Classes(FOLDERS[path])
    for place, item in api["paths"].items():
        for method in [each for each in item if each in METHODS]:
            _complete(place, method, item[method], classes)
            if path == HUB and method == "post" and place.startswith(("/api/", "/v1/")) and place not in _WITHOUT_KEY:
                item[method].setdefault("parameters", []).append(_KEY)
    problem = {_ERRORS: {"schema": classes.reference(ERROR)}}
    api["components"]["responses"] = {"Error": {"description": "Problem details (RFC 9457).", "content": problem}}
    api["components"]["schemas"] = classes.schemas()
    plain: dict[str, Any] = _plain(api)
    return plain


def encoded(path: str) -> str:
    """Return the served file of a description: one operation or schema a line, so that changes are small."""
    api = openapi(path)
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in api.items() if name not in _LARGE]
    paths = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in api["paths"].items())
    small = {name: value for name, value in api["components"].items() if name != "schemas"}
    schemas = ",\n".join(f"{json.dumps(each)}: {json.dumps(one)}" for each, one in api["components"]["schemas"].items())
    parts.append(f'"paths": {{\n{paths}\n}}')
    parts.append(f'"components": {json.dumps(small)[:-1]}, "schemas": {{\n{schemas}\n}}}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


_LARGE: Final = frozenset(("paths", "components"))


def _complete(place: str, method: str, operation: dict[str, Any], classes: _Classes) -> None:
    """Put the types of a body and of the answers into an operation."""
    operation["operationId"] = _identifier(place, method)
    body, answer = operation.pop("x-body", None), operation.pop("x-answer", None)
    if body is not None:
        about = operation.setdefault("requestBody", {"description": "The document."})
        media = next(iter(about.get("content", {})), _JSON)
        about["content"] = {media: {"schema": classes.reference(body)}}
        about.setdefault("required", True)
    error = _error(operation.pop("x-error", None), classes)
    for status, response in operation["responses"].items():
        own = response.pop("x-answer", None)
        if status[0] == "2" and status != "204":
            wanted = own or answer
            if wanted is not None:
                response["content"] = _content(wanted, classes)
        elif status[0] in "45":
            response.update(error if own is None else {"content": _content(own, classes)})
    operation["responses"]["default"] = {"description": "Another error.", **error}


def _error(own: str | None, classes: _Classes) -> dict[str, Any]:
    """Return the part of a response that says how errors look; `own`: class where they look different."""
    return {"$ref": _ERROR} if own is None else {"content": _content(own, classes)}


def _content(wanted: str | list[str] | dict[str, Any], classes: _Classes) -> dict[str, Any]:
    if isinstance(wanted, str) and "/" in wanted:
        return {wanted: {}}
    return {_JSON: {"schema": classes.reference(wanted)}}


def _identifier(place: str, method: str) -> str:
    """Return a name for an operation, for generated clients."""
    words = re.findall(r"[A-Za-z0-9]+", place.removeprefix("/api/v1"))
    return method + "".join(word[0].upper() + word[1:] for word in words or ["root"])


class _Classes:
    """Classes of documents by name, with their schemas."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._modules = {
            node.name: path
            for path in source.sources(*folders)
            for node in source.tree(path).body
            if isinstance(node, ast.ClassDef)
        }
        self._used: dict[str, Any] = {}

    def reference(self, name: str | list[str] | dict[str, Any]) -> dict[str, Any]:
        """Return the schema that refers to a class, to a list of its objects, to one of several, or to a list of
        those."""
        if isinstance(name, dict):
            return {"type": "array", "items": self.reference(name["list"])}
        if isinstance(name, list):
            return {"anyOf": [self.reference(each) for each in name]}
        if name == "object":
            return {"type": "object"}
        if name.endswith("[]"):
            return {"type": "array", "items": self.reference(name.removesuffix("[]"))}
        self._used[name] = self._find(name)
        return {"$ref": _REFERENCE + name}

    def _find(self, name: str) -> Any:
        if name not in self._modules:
            raise OpenApiError(f"no module has a class {name}")
        module = importlib.import_module(self._modules[name].removesuffix(".py").replace("/", "."))
        return getattr(module, name)

    def schemas(self) -> dict[str, Any]:
        """Return the schemas of the classes in use, by name."""
        _, found = msgspec.json.schema_components(list(self._used.values()), ref_template=_REFERENCE + "{name}")
        for name, schema in found.items():
            if name in self._modules:
                _describe(schema, dict(self._fields(name)))
        return dict(sorted(found.items()))

    def _fields(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield the fields of a class and of its bases that have a text below them."""
        tree = source.tree(self._modules[name])
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                for base in node.bases:
                    if isinstance(base, ast.Name) and base.id in self._modules:
                        yield from self._fields(base.id)
                for field, below in zip(node.body, node.body[1:], strict=False):
                    match field, below:
                        case ast.AnnAssign(target=ast.Name(id=found)), ast.Expr(value=ast.Constant(value=str(about))):
                            yield found, about


def _describe(schema: dict[str, Any], fields: Mapping[str, str]) -> None:
    for name, field in schema.get("properties", {}).items():
        if name in fields and "$ref" not in field:
            field["description"] = " ".join(fields[name].replace("``", "`").split())


def _plain(value: Any) -> Any:
    """Return a part of the document without links of the reference, and without line breaks in texts."""
    if isinstance(value, dict):
        return {
            name: " ".join(_LINK.sub(r"\1", each).replace("``", "`").split())
            if name in ("description", "summary") and isinstance(each, str)
            else _plain(each)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


if __name__ == "__main__":
    for description, file in FILES.items():
        file.write_text(encoded(description))
        sys.stdout.write(f"{file}\n")
