"""A gateway accepts the first example of how to bridge to other systems."""

from __future__ import annotations

import re
from pathlib import Path

from bridge.resources import parse
from edge.configuration.effective import build_configuration, notices
from edge.configuration.kinds import KINDS
from tests.support.pages import ENROLLED

PAGE = Path(__file__).parents[3] / "docs/how-to/bridge-to-other-systems.md"


def test_documented_example_is_valid() -> None:
    text, *_ = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    resources = parse.parse(KINDS, f"{text}---\n{ENROLLED}", PAGE.name)
    assert KINDS.validate(resources) == []
    assert notices(resources) == []
    forwarders = {forwarder.name: forwarder for forwarder in build_configuration(resources).forwarders}
    assert forwarders["default.plant/hot"].remote_address == "/exchange/amq.topic/hot.{device}"
    assert forwarders["default.orders/from-cloud"].connector == "rabbit"
