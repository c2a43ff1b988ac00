"""The representation of each class hides content of messages and secrets."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader, FileFinder
from typing import Any

import msgspec
import pytest

from bridge.hidden import hides

MARKER = "marker-5e1d"
PACKAGES = ("bridge", "edge", "cloud")
TELLING = re.compile(
    r"_?(body|bodies|payload|content|messages|properties|user_property|application|correlation\w*|document|"
    r"password|token|argon2|salt|stored|decoy_key|authentication_data|base64|local|page)"
)
"""Names of fields that hold content or secrets."""
HARMLESS = ("int", "int | None", "bool", "Stored")
"""Types of fields with a number, or with a run, which hides its content."""
HIDDEN_WITHIN = {
    "cloud.hub.registry.device_search.SearchQuery.page": "position and size of a page",
    "cloud.hub.registry.device_search.SearchedTable.document": "a column",
    "cloud.hub.groups.QueueEntry.content": "a batch, a document or what is unreadable",
    "cloud.hub.registry.views.SavedView.page": "the name of a page of the console",
    "cloud.lake.lake.TransactionId.application": "a name the hub gives",
}
"""Fields with values that hide their own content."""


def compiled_from_c(found: pkgutil.ModuleInfo) -> bool:
    """Return True for a shared library next to its source, which is found like a module."""
    assert isinstance(found.module_finder, FileFinder)
    spec = found.module_finder.find_spec(found.name)
    return spec is not None and isinstance(spec.loader, ExtensionFileLoader)


def classes() -> Iterator[type[Any]]:
    """Yield every dataclass, struct and named tuple of the packages."""
    for root in PACKAGES:
        package = importlib.import_module(root)
        for found in pkgutil.walk_packages(package.__path__, f"{root}."):
            if compiled_from_c(found):
                continue
            module = importlib.import_module(found.name)
            for value in vars(module).values():
                if inspect.isclass(value) and value.__module__ == module.__name__ and fields(value):
                    yield value


def fields(cls: type[Any]) -> tuple[str, ...]:
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    if issubclass(cls, tuple):
        return tuple(getattr(cls, "_fields", ()))
    return tuple(field.name for field in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else ()


def telling(cls: type[Any]) -> list[str]:
    """Return the fields of a class that hold content or secrets."""
    kinds: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        kinds.update(inspect.get_annotations(base))
    words = {name: str(getattr(kind, "__forward_arg__", kind)) for name, kind in kinds.items()}
    return [name for name in fields(cls) if TELLING.fullmatch(name) and words.get(name) not in HARMLESS]


def made(cls: type[Any], name: str) -> Any:
    """Return an instance with the marker in field `name`, without a call of its constructor."""
    values: dict[str, Any] = dict.fromkeys(fields(cls))
    values[name] = [MARKER.encode()]
    if issubclass(cls, tuple):
        return tuple.__new__(cls, values.values())
    instance = cls.__new__(cls)
    for field, value in values.items():
        if issubclass(cls, msgspec.Struct):
            msgspec.structs.force_setattr(instance, field, value)
        else:
            object.__setattr__(instance, field, value)
    return instance


def test_fields_with_content_or_secrets_are_hidden() -> None:
    shown: set[str] = set()
    looked_at = 0
    for cls in classes():
        for name in telling(cls):
            looked_at += 1
            try:
                text = f"{made(cls, name)!r} {made(cls, name)}"
            except (TypeError, AttributeError):  # it shows counts of values that are missing here
                continue
            if MARKER in text:
                shown.add(f"{cls.__module__}.{cls.__name__}.{name}")
    assert shown == set(HIDDEN_WITHIN), "bridge.hidden.hides"
    assert looked_at > 40


@hides("body")
@dataclasses.dataclass
class _Class:
    name: str
    body: bytes | None


@hides("body")
class _Struct(msgspec.Struct):
    name: str
    body: bytes


@pytest.mark.parametrize("kind", [_Class, _Struct])
def test_hidden_fields_show_their_length_and_others_their_value(kind: type[Any]) -> None:
    instance = kind("a", MARKER.encode())
    for text in (repr(instance), str(instance), f"{instance}", repr(ValueError("no", instance)), repr([instance])):
        assert MARKER not in text
        assert "'a'" in text
        assert f"<bytes {len(MARKER)}>" in text
    assert "body=None" in repr(_Class("a", None))
