"""Message broker of the cluster on one machine: its queues are those that hubs and applications use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloud.hub.configuration import parse
from cloud.hub.messaging.settings import address_of
from tests.demo.cluster import programs
from tests.demo.cluster.application import CommandAccount
from tests.demo.cluster.launching import Launcher
from tests.demo.cluster.messages import COMMANDS, COPIES_MAX, DEAD, OUTCOMES, MessageBroker, definitions
from tests.demo.cluster.programs import Programs, RabbitPrograms
from tests.demo.processes import Children

RABBIT = RabbitPrograms(Path("/server"), Path("/epmd"))


@pytest.fixture
def broker(tmp_path: Path) -> MessageBroker:
    found = Programs(Path("/haproxy"), Path("/postgresql"), Path("/setpriv"), RABBIT, None)
    return MessageBroker(tmp_path / "rabbitmq", Launcher(Children(tmp_path), found), RABBIT)


def test_hubs_use_the_queues_of_the_broker(broker: MessageBroker) -> None:
    spec = {"messaging": broker.settings, "lake": "s3://fleet/lake"}
    document = {"apiVersion": "waypost/v1", "kind": "Hub", "spec": spec}
    settings = parse(str(document).replace("'", '"').encode(), "hub.yaml").messaging
    assert settings is not None
    queues = {f"/amq/queue/{each['name']}" for each in definitions()["queues"]}
    assert (address_of(settings.commands, "default"), address_of(settings.outcomes, "default")) == (COMMANDS, OUTCOMES)
    assert {COMMANDS, OUTCOMES, f"{address_of(settings.replies, 'default')}app"} <= queues


def test_full_queue_refuses_and_a_refused_command_is_kept() -> None:
    found = definitions()
    [policy] = found["policies"]
    assert policy["definition"]["overflow"] == "reject-publish"
    assert policy["definition"]["dead-letter-routing-key"] == DEAD
    assert not re.search(policy["pattern"], DEAD), "it keeps what it has"
    assert {each["arguments"].get("x-queue-type") for each in found["queues"] if each["durable"]} == {"quorum"}


def test_live_copies_beyond_the_limit_drop_the_oldest() -> None:
    found = definitions()
    [copies] = [each for each in found["queues"] if not each["durable"]]
    assert copies["arguments"] == {"x-max-length": COPIES_MAX, "x-overflow": "drop-head"}
    assert not re.search(found["policies"][0]["pattern"], copies["name"]), "a sender is never refused"
    assert {each["destination"] for each in found["bindings"]} == {copies["name"]}


@pytest.mark.parametrize(
    ("account", "adds_up"),
    [
        (CommandAccount(3, 3, 0), True),
        (CommandAccount(3, 2, 0), False),
        (CommandAccount(3, 3, 1), False),
        (CommandAccount(0, 0, 0), False),
    ],
)
def test_each_command_has_an_outcome(account: CommandAccount, adds_up: bool) -> None:
    assert account.adds_up is adds_up


def test_missing_rabbitmq_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "RABBITMQ", tmp_path / "missing")
    assert programs._find_rabbitmq("/usr/bin") is None
