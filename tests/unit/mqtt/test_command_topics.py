"""Commands of a hub under topics with their names."""

from __future__ import annotations

import pytest

from bridge.command import HubCommand, queued
from bridge.message import Run
from edge.broker.mqtt.command_topics import CommandSelection, topic_of


def command(name: str) -> Run:
    made = HubCommand(id="1", device="pump7", name=name, payload=b"", content_type=None, ttl_ms=1_000, response=True)
    return queued(made, "command/pump7", "command-response/pump7")


@pytest.mark.parametrize(
    ("name", "level"), [("speed", "speed"), ("a b", "a b"), ("a/b", "a%2Fb"), ("50%", "50%25"), ("ö", "%C3%B6")]
)
def test_name_is_one_level(name: str, level: str) -> None:
    assert topic_of(command(name), 0) == f"command/pump7/{level}"


def test_command_without_a_name_keeps_its_topic() -> None:
    assert topic_of(Run("command/pump7", "", 1, b"", [b"x"]), 0) == "command/pump7"
    assert topic_of(Run("command/pump7/x", "", command("speed").flags, b"", command("speed").bodies), 0) == (
        "command/pump7/x"
    )


@pytest.mark.parametrize(
    ("pattern", "wanted"), [("command/pump7/+", True), ("command/pump7/speed", True), ("command/pump7/stop", False)]
)
def test_filter_selects_by_name(pattern: str, wanted: bool) -> None:
    assert list(CommandSelection(pattern).wanted(command("speed"))) == [wanted]
    assert list(CommandSelection(pattern).wanted(Run("command/pump7", "", 1, b"", [b"x"]))) == [False]
