"""The own configuration as a text for an editor: secrets are hidden, and kept."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.resources.errors import ConfigurationRejected
from bridge.resources.parse import parse
from edge.configuration.kinds import KINDS
from edge.configuration.own_text import parse_own, resources_in, shown_text

PASSWORD = "c2VjcmV0"
RESOURCES = f"""
apiVersion: waypost/v1
kind: Address
metadata: {{name: jobs}}
spec: {{address: jobs, type: queue}}
---
apiVersion: user.enmasse.io/v1beta1
kind: MessagingUser
metadata: {{name: default.pump7}}
spec:
  username: pump7
  authentication: {{type: password, password: {PASSWORD}}}
  authorization: [{{addresses: ["jobs"], operations: [send]}}]
"""


def documents() -> list[dict[str, Any]]:
    return [resource.document for resource in parse(KINDS, RESOURCES, "test")]


def test_text_hides_secrets_and_keeps_them() -> None:
    text = shown_text(documents())
    assert PASSWORD not in text
    assert [resource.document for resource in parse_own(text, documents())] == documents()


def test_secret_may_be_replaced() -> None:
    text = shown_text(documents()).replace("'********'", "bmV3")
    assert parse_own(text, documents())[1].document["spec"]["authentication"]["password"] == "bmV3"


def test_hidden_value_of_a_new_resource_is_a_mistake_with_its_line() -> None:
    text = shown_text(documents()).replace("default.pump7", "default.pump8")
    with pytest.raises(ConfigurationRejected) as caught:
        parse_own(text, documents())
    [error] = caught.value.errors
    assert error.path == "spec.authentication.password"
    assert text.splitlines()[error.line - 1].strip().startswith("password:")


def test_mistakes_have_their_lines() -> None:
    text = shown_text(documents()).replace("type: queue", "type: pile")
    with pytest.raises(ConfigurationRejected) as caught:
        parse_own(text, documents())
    [error] = caught.value.errors
    assert (error.line, error.path) == (text.splitlines().index("  type: pile") + 1, "spec.type")


def test_resource_may_not_be_there_twice() -> None:
    text = shown_text(documents()[:1] * 2)
    with pytest.raises(ConfigurationRejected, match="Address jobs"):
        parse_own(text, documents())


def test_earlier_version_has_its_own_secrets() -> None:
    assert [resource.document for resource in resources_in(documents())] == documents()
