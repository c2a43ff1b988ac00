"""The checks of `test_tidy` on assignments to attributes of other objects, and on circles of imports."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import pytest

from tests.support.ownership import Program, import_circles, is_refused

PARTS = """
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Wake: TypeAlias = Callable[[], None] | None

def nothing() -> None: ...

class Flow:
    limit: int = 0

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake: Callable[[], None] = nothing
        self.given = wake
        self.named = nothing
        self.aliased: Wake = None
        self.later = lambda: None
        self.size = 0
        self._kept = 0

@dataclass
class Figures:
    sent: int = 0
    heard: Callable[[], None] = nothing
    _kept: int = 0

class Owner:
    def __init__(self) -> None:
        self.flow = Flow(nothing)
        self.flows: dict[str, Flow] = {}
        self.figures = Figures()

    def first(self) -> Flow: ...
"""


def refused(text: str, path: str = "other/user.py", **others: str) -> list[str]:
    """Return the targets of refused assignments in a module that uses `PARTS`."""
    sources = {"parts/flow.py": PARTS, path: text} | {f"{name}/__init__.py": source for name, source in others.items()}
    program = Program(parse(sources))
    return [each.target for each in program.assignments() if is_refused(program, each)]


def with_flow(body: str) -> str:
    """Return the source of a module with a function that gets a flow and figures."""
    return f"from parts.flow import Figures, Flow\ndef use(flow: Flow, figures: Figures) -> None:\n    {body}"


def parse(sources: Mapping[str, str]) -> dict[str, ast.Module]:
    return {path: ast.parse(source) for path, source in sources.items()}


@pytest.mark.parametrize("hook", ["wake", "given", "named", "aliased", "later"])
def test_hook_is_refused_in_its_own_package(hook: str) -> None:
    text = with_flow(f"flow.{hook} = print")
    assert refused(text, "parts/user.py") == [f"flow.{hook}"]
    assert refused(text) == [f"flow.{hook}"]


def test_hook_of_a_record_is_refused() -> None:
    text = with_flow("figures.heard = print")
    assert refused(text) == ["figures.heard"]


def test_assignment_of_state_outside_its_package_is_refused() -> None:
    text = with_flow("flow.limit, flow.size = 1, 2\n    flow.size += 1")
    assert refused(text) == ["flow.limit", "flow.size", "flow.size"]
    assert refused(text, "parts/user.py") == []


def test_public_fields_of_a_record_may_be_written() -> None:
    text = with_flow("figures.sent += 1\n    figures._kept = 1")
    assert refused(text) == ["figures._kept"]


def test_module_may_write_its_own_classes() -> None:
    assert refused(f"{PARTS}\ndef use(flow: Flow) -> None:\n    flow.wake = print") == []


@pytest.mark.parametrize("line", [
    "flow.limit = 1", "Owner().flow.limit = 1", "owner.flow.limit = 1", "owner.flows['a'].limit = 1",
    "owner.first().limit = 1", "(maybe or flow).limit = 1", "made = Flow(print); made.limit = 1",
    "for each in many: each.limit = 1", "for each in owner.flows.values(): each.limit = 1",
])  # fmt: skip
def test_types_are_inferred(line: str) -> None:
    signature = "def use(flow: Flow, owner: Owner, maybe: Flow | None, many: list[Flow]) -> None:"
    imports = "from parts.flow import Figures, Flow, Owner\n"
    assert len(refused(f"{imports}{signature}\n    {line}")) == 1


def test_class_is_known_through_reexports() -> None:
    text = "from passed import Flow\ndef use(flow: Flow) -> None:\n    flow.limit = 1"
    assert refused(text, passed="from parts.flow import Flow") == ["flow.limit"]


def test_objects_of_libraries_are_ignored() -> None:
    body = "context.limit = 1\n    made = ssl.make()\n    made.wake = print"
    text = f"import ssl\ndef use(context: ssl.SSLContext) -> None:\n    {body}"
    assert refused(text) == []


def test_object_of_unknown_type_may_be_of_each_class_with_the_attribute() -> None:
    text = "def use(some) -> None:\n    some.wake = print\n    some.sent = 1"
    assert refused(text) == ["some.wake"]


def test_import_cycles_are_found_under_type_checking_and_in_functions() -> None:
    sources = {
        "a/__init__.py": "",
        "a/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.c import C",
        "a/c.py": "from a import d",
        "a/d.py": "def use() -> None:\n    import a.b",
        "a/e.py": "from a.b import B",
    }
    assert import_circles(parse(sources)) == [["a.b", "a.c", "a.d"]]
    del sources["a/d.py"]
    assert import_circles(parse(sources)) == []
