"""OpenAPI documents: their validation by the schema of the standard, and of answers by the document.

`openapi-3.1.schema.json` is https://spec.openapis.org/oas/3.1/schema/2022-10-07 (Apache License 2.0), unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from tests.support.http_client import Answer

SCHEMA: Final = Path(__file__).with_name("openapi-3.1.schema.json")
METHODS: Final = frozenset(("get", "post", "put", "patch", "delete"))


def check_openapi(document: Mapping[str, Any]) -> None:
    """Check a document by the schema of the standard, and each of its schemas."""
    found = sorted(Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(document), key=str)
    assert not found, [(list(each.absolute_path), each.message[:200]) for each in found[:5]]
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    known = set(document["components"]["schemas"])
    assert set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document))) == known


class ApiOperation(NamedTuple):
    """Operation of a document."""

    path: str
    method: str
    content: Mapping[str, Any]


class OpenApiContract:
    """Document of a running node, which its answers have to follow.

    An answer must not have fields that are not documented.
    """

    def __init__(self, document: Mapping[str, Any], partial: Collection[str] = ()) -> None:
        """`partial`: schemas that document only some of the fields."""
        self._document = document
        schemas = document["components"]["schemas"]
        self._schemas = {name: each if name in partial else _closed(each) for name, each in schemas.items()}

    def operations(self, method: str) -> Iterator[ApiOperation]:
        """Yield the operations with a method."""
        for path, item in self._document["paths"].items():
            if method in item:
                yield ApiOperation(path, method, item[method])

    def check(self, operation: ApiOperation, answer: Answer) -> None:
        """Check an answer to an operation."""
        responses, kind = operation.content["responses"], answer.headers.get("content-type", "").partition(";")[0]
        response = responses.get(str(answer.status)) or responses["default"]
        if "$ref" in response:
            response = self._document["components"]["responses"][response["$ref"].rpartition("/")[2]]
        where = f"{operation.method} {operation.path}: {answer.status} {kind}"
        documented = response.get("content", {})
        assert kind in documented or "*/*" in documented or not (documented or answer.body), (where, documented)
        schema = documented.get(kind, {}).get("schema")
        if schema is not None:
            root = {**schema, "components": {"schemas": self._schemas}}
            found = list(Draft202012Validator(root).iter_errors(answer.document))
            assert not found, (where, [_fault(each) for each in found[:5]])


def address_of(operation: ApiOperation, values: Mapping[str, str]) -> str:
    """Return path and query of an operation. `values`: of the parameters in the path, and of others as needed."""
    path = re.sub(r"\{(\w+)\}", lambda found: quote(values[found[1]]), operation.path)
    required = {
        each["name"]: values[each["name"]]
        for each in operation.content.get("parameters", ())
        if each["in"] == "query" and (each.get("required") or each["name"] in values)
    }
    return f"{path}?{urlencode(required)}" if required else path


def _fault(error: ValidationError) -> tuple[list[Any], str, list[str]]:
    """Return where an answer differs, and how."""
    return list(error.absolute_path), error.message[:300], [each.message[:300] for each in error.context or ()]


def _closed(schema: Any) -> Any:
    """Return a schema in which objects with known fields have no others."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _closed(each) for name, each in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made
