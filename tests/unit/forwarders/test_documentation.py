"""A gateway accepts the YAML in the README of the bridge."""

from __future__ import annotations

import re
from pathlib import Path

from bridge.resources import parse
from edge.configuration.effective import effective, notices
from edge.configuration.kinds import KINDS

README = Path(__file__).parents[3] / "bridge" / "README.md"


def test_the_example_is_taken_as_it_stands() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", README.read_text(), flags=re.DOTALL)
    resources = parse.parse(KINDS, text, "README.md")
    assert KINDS.validate(resources) == []
    assert notices(resources) == []
    forwarders = {forwarder.name: forwarder for forwarder in effective(resources).forwarders}
    assert forwarders["plant/hot"].remote_address == "/exchange/amq.topic/hot.{device}"
    assert forwarders["orders/from-cloud"].connector == "rabbit"
