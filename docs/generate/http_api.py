"""The HTTP interfaces: every operation, from the OpenAPI descriptions, and the routes of the code to compare with."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml

from docs.generate import markdown, source

GATEWAY: Final = "docs/reference/gateway.openapi.yaml"
HUB: Final = "docs/reference/hub.openapi.yaml"
CODE: Final = {
    GATEWAY: ("edge",),
    HUB: (
        "cloud",
        "edge/broker/http/assets.py",
        "edge/broker/http/log_api.py",
        "edge/broker/http/oidc_api.py",
        "edge/broker/http/openapi.py",
        "edge/broker/http/session_api.py",
    ),
}
"""Folders and modules with the routes of each description."""
METHODS: Final = ("get", "head", "post", "put", "patch", "delete")


class HttpOperation(NamedTuple):
    """A method of a path."""

    path: str
    method: str


def document(path: str) -> Mapping[str, Any]:
    """Return an OpenAPI description."""
    found: Mapping[str, Any] = yaml.safe_load((source.ROOT / path).read_text())
    return found


def described(path: str) -> set[HttpOperation]:
    """Return the operations of a description."""
    paths = document(path)["paths"]
    return {HttpOperation(each, method) for each, item in paths.items() for method in item if method in METHODS}


def routes(*folders: str) -> set[HttpOperation]:
    """Return the operations that the code serves, in the words of OpenAPI; HEAD goes with GET and is left out."""
    return {each for path in source.sources(*folders) for each in _routes(path)}


def _routes(path: str) -> Iterator[HttpOperation]:
    names = dict(_module_names(path))
    for node in ast.walk(source.tree(path)):
        match node:
            case ast.Call(func=ast.Name(id="HttpRoute"), args=[place, *_], keywords=keywords) if keywords:
                methods = next((each.value for each in keywords if each.arg == "methods"), None)
            case ast.Call(func=ast.Attribute(attr="_route"), args=[place, _, *more]):
                methods = ast.Tuple(elts=more)
            case _:
                continue
        for text in source.texts(place, names):
            if text.startswith("/"):
                yield from (HttpOperation(_in_openapi(text), method) for method in _methods(methods))


def _module_names(path: str) -> Iterator[tuple[str, ast.expr]]:
    """Yield constants of a module and of the modules it imports them from."""
    for node in source.tree(path).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            other = node.module.replace(".", "/") + ".py"
            if (source.ROOT / other).exists():
                known = {each.name: each.value for each in source.constants(other)}
                yield from ((alias.name, known[alias.name]) for alias in node.names if alias.name in known)
    yield from ((each.name, each.value) for each in source.constants(path))


def _methods(node: ast.expr | None) -> list[str]:
    match node:
        case ast.Tuple(elts=elements):
            return [str(each.value).lower() for each in elements if isinstance(each, ast.Constant)]
        case ast.Name(id="PURE"):
            return ["get"]
    return []


def _in_openapi(path: str) -> str:
    return re.sub(r"\{(\w+)(:\w+)?\}", r"{\1}", path)


def gateway_page() -> str:
    """Return the reference of a gateway's HTTP interface."""
    return _page(GATEWAY, "gateway-http")


def hub_page() -> str:
    """Return the reference of a hub's HTTP interface."""
    return _page(HUB, "hub-http")


def _page(path: str, prefix: str) -> str:
    api = document(path)
    parts = []
    for tag in api["tags"]:
        parts.append(markdown.heading(2, tag["name"], f"{prefix}-{markdown.anchor(tag['name'])}"))
        parts.append(tag.get("description", "") + "\n")
        for place, item in api["paths"].items():
            for method, operation in item.items():
                if method in METHODS and tag["name"] in operation["tags"]:
                    parts += _operation(place, method, item, operation, prefix)
    return "\n".join(parts)


def _operation(
    place: str, method: str, item: Mapping[str, Any], operation: Mapping[str, Any], prefix: str
) -> Iterator[str]:
    yield markdown.heading(3, f"`{method.upper()} {place}`", f"{prefix}-{markdown.anchor(f'{method} {place}')}")
    yield f"{operation['summary']}. {operation.get('description', '')}".strip() + "\n"
    if "x-right" in operation:
        yield f"**Right:** {operation['x-right']}\n"
    parameters = [*item.get("parameters", ()), *operation.get("parameters", ())]
    if parameters:
        rows = [
            (markdown.code(each["name"]), each["in"], "required" if each.get("required") else "", each["description"])
            for each in parameters
        ]
        yield markdown.table(("parameter", "in", "", "meaning"), rows)
    body = operation.get("requestBody")
    if body is not None:
        yield f"**Body:** {body['description']}\n"
    answers = [(markdown.code(str(code)), each["description"]) for code, each in operation["responses"].items()]
    yield markdown.table(("answer", "meaning"), answers)
