"""The parser returns resources or located errors for any input, and an applied configuration reads back the same."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.resources import parse
from bridge.resources.errors import ConfigurationRejected
from edge.broker.model.addresses import AddressType
from edge.configuration.effective import build_configuration
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from tests.support.medium import fast_folder

names = st.from_regex(r"\A[a-z0-9]([a-z0-9._-]{0,8}[a-z0-9])?\Z")
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
anything: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
fields = st.sampled_from(
    ["apiVersion", "kind", "metadata", "spec", "name", "address", "type", "forwarders", "quota", "listeners", "hub"]
)
shaped: st.SearchStrategy[Any] = st.recursive(
    scalars | st.sampled_from(["waypost/v1", "Address", "Gateway", "queue", "7d", "64Mi", "a:1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=5),
    max_leaves=15,
)


def parse_or_errors(data: bytes | str) -> None:
    """Parse; fail on any result but resources or well-formed errors."""
    try:
        parse.parse(KINDS, data, "x.yaml")
    except ConfigurationRejected as why:
        errors = why.errors
    else:
        return
    assert errors
    for error in errors:
        assert error.line >= 0
        assert str(error).startswith("x.yaml")


@settings(max_examples=200)
@given(st.binary(max_size=200))
@example(b"? [a]\n: b\n")
@example(b"<<: {a: b}\n")
@example(b"a: !!int x\n")
@example(b"a: !!bool x\n")
@example(b"a: !!float .\n")
@example(b"a: &a [*a]\n")
@example(b"%YAML 9.9\n---\na\n")
def test_no_bytes_crash_the_parser(data: bytes) -> None:
    parse_or_errors(data)


@settings(max_examples=150)
@given(anything | shaped)
def test_no_document_crashes_the_schema(document: Any) -> None:
    parse_or_errors(yaml.safe_dump(document))


@st.composite
def addresses(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw addresses that are valid together."""
    documents = []
    for name in draw(st.lists(names, unique=True, max_size=5)):
        type_ = draw(st.sampled_from([t for t in AddressType if t is not AddressType.SUBSCRIPTION]))
        spec: dict[str, Any] = {"address": f"{name}/{draw(st.sampled_from(['#', '+', 'x']))}", "type": type_.value}
        if type_.is_queue and draw(st.booleans()):
            spec["messageTtl"] = {"maximum": draw(st.integers(0, 10**9) | st.sampled_from(["7d", "1.5h", "250ms"]))}
            spec["quota"] = {"bytes": draw(st.integers(0, 10**9) | st.sampled_from(["64Mi", "1G"]))}
        labels = draw(st.dictionaries(names, st.text(max_size=10), max_size=2))
        documents.append(
            {
                "apiVersion": "waypost/v1",
                "kind": "Address",
                "metadata": {"name": name, "labels": labels},
                "spec": spec,
            }
        )
    return documents


@settings(max_examples=60)
@given(addresses(), addresses())
def test_applied_configuration_survives_with_its_meaning(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    model = {document["metadata"]["name"]: document for document in [*first, *second]}
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        store = Repository(Path(folder))
        for documents in (first, second):
            resources = parse.parse(KINDS, "---\n".join(map(parse.to_yaml, documents)), "x.yaml")
            assert [resource.document for resource in resources] == documents
            store.apply(resources)
        loaded = store.load()
        assert {resource.name: resource.document for resource in loaded.resources} == model
        again = parse.parse(KINDS, yaml.safe_dump_all([resource.document for resource in loaded.resources]), "y.yaml")
        assert build_configuration(again) == build_configuration(loaded.resources)
        assert len(build_configuration(again).addresses) == len(model)
        store.delete([resource.key for resource in loaded.resources])
        assert store.load().resources == ()
