"""A gateway accepts the examples of how to bridge to other systems."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bridge.resources import parse
from edge.configuration.effective import build_configuration, notices
from edge.configuration.kinds import KINDS
from tests.support.pages import ENROLLED

PAGE = Path(__file__).parents[3] / "docs/how-to/bridge-to-other-systems.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_documented_example_is_valid() -> None:
    resources = parse.parse(KINDS, f"{EXAMPLES[0]}---\n{ENROLLED}", PAGE.name)
    assert KINDS.validate(resources) == []
    assert notices(resources) == []
    forwarders = {forwarder.name: forwarder for forwarder in build_configuration(resources).forwarders}
    assert forwarders["default.plant/hot"].remote_address == "/exchange/amq.topic/hot.{device}"
    assert forwarders["default.orders/from-cloud"].connector == "rabbit"


@pytest.mark.parametrize("text", EXAMPLES, ids=[re.findall("name: ([a-z]+)\n    type", text)[0] for text in EXAMPLES])
def test_every_example_can_be_applied(text: str) -> None:
    resources = parse.parse(KINDS, f"{text}---\n{ENROLLED}", PAGE.name)
    assert KINDS.validate(resources) == []
    assert notices(resources) == []
    assert build_configuration(resources).forwarders
