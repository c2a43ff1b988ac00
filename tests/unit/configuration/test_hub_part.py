"""The hub's part over a gateway's own: the resulting resources, and the changes that either side may make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.desired import Desired
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.parse import parse
from cloud.hub.desired.making import check_resources
from edge.configuration.file import RepositoryError
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository

OWN = """
apiVersion: waypost/v1
kind: Gateway
metadata: {name: hall, labels: {floor: "1"}}
spec:
  listeners: {mqtt: "127.0.0.1:1883"}
  limits: {connectionsMax: 50, packetBytesMax: 1048576}
  hub: {url: "amqp://127.0.0.1:5672"}
---
apiVersion: waypost/v1
kind: Address
metadata: {name: plant}
spec: {address: plant/#, type: topic}
"""


def resource(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "waypost/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def desired(number: int, *resources: dict[str, Any]) -> Desired:
    return Desired(tenant="t", gateway="hall", version=number, made_at=0, resources=list(resources))


QUEUE = resource("Address", "plant", address="plant/#", type="queue")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path)
    made.apply(parse(KINDS, OWN, "own.yaml"))
    return made


def follow(repository: Repository, wanted: Desired) -> None:
    known = repository.take(wanted, "aa", lambda _whole: None)
    assert known.trial is not None, known.failure
    repository.step(lambda versions: versions.confirmed_by_hub(wanted.version))


def spec(repository: Repository, kind: str, name: str) -> dict[str, Any]:
    found = [each for each in repository.load().resources if each.key == (kind, name)]
    return dict(found[0].document["spec"])


def given(*documents: dict[str, Any]) -> list[Any]:
    return parse(KINDS, yaml.safe_dump_all(documents), "given.yaml")


class TestInForce:
    def test_resource_of_the_hub_replaces_the_local_one(self, repository: Repository) -> None:
        follow(repository, desired(1, QUEUE))
        assert spec(repository, "Address", "plant")["type"] == "queue"
        follow(repository, desired(2))
        assert spec(repository, "Address", "plant")["type"] == "topic", "as it was"

    def test_given_fields_of_the_hub_override_the_gateway(self, repository: Repository) -> None:
        follow(repository, desired(1, resource("Gateway", "any", limits={"connectionsMax": 99})))
        [gateway] = [each for each in repository.load().resources if each.kind == "Gateway"]
        assert gateway.name == "hall"
        assert gateway.metadata.labels == {"floor": "1"}
        assert gateway.document["spec"]["limits"] == {"connectionsMax": 99, "packetBytesMax": 1048576}
        assert gateway.document["spec"]["listeners"] == {"mqtt": "127.0.0.1:1883"}

    def test_conflicting_part_is_refused_with_its_path(self, repository: Repository) -> None:
        forwarder = {"name": "up", "remoteAddress": "nowhere"}
        wanted = desired(1, resource("Address", "x", address="x/#", type="topic", forwarders=[forwarder]))
        failure = repository.take(wanted, "aa", lambda _whole: None).failure
        assert failure is not None
        assert "version 1: Address x: spec.forwarders[0]" in failure.why
        assert repository.take(desired(2, {"kind": "Adress"}), "aa", lambda _whole: None).trial is None

    def test_new_authority_restarts_numbering_and_keeps_the_active_part(self, repository: Repository) -> None:
        follow(repository, desired(7, QUEUE))
        failure = repository.take(desired(1), "bb", lambda _whole: "no").failure
        assert failure is not None
        assert failure.version == 1
        assert spec(repository, "Address", "plant")["type"] == "queue"


class TestLocalChanges:
    def test_change_of_a_hub_resource_is_refused(self, repository: Repository) -> None:
        follow(repository, desired(1, QUEUE))
        with pytest.raises(ConfigurationRejected, match=r"given.yaml:\d: .*plant: .*hub"):
            repository.apply(given(resource("Address", "plant", address="plant/#", type="topic", plan="x")))
        version, [change] = repository.apply(given(QUEUE))
        assert (version, change.verb) == (1, "unchanged")

    def test_local_override_lasts_until_the_next_version(self, repository: Repository) -> None:
        follow(repository, desired(1, QUEUE))
        mine = resource("Address", "plant", address="plant/#", type="topic", plan="mine")
        repository.apply(given(mine), keep=True)
        assert spec(repository, "Address", "plant")["plan"] == "mine"
        assert repository.hub_versions().report().kept == ("Address/plant",)
        assert repository.load().managed == ()
        repository.take(desired(2, QUEUE), "aa", lambda _whole: None)
        assert spec(repository, "Address", "plant")["type"] == "queue"
        repository.step(lambda versions: versions.rolled_back("no hub"))
        assert spec(repository, "Address", "plant")["plan"] == "mine", "as it was before the trial"

    def test_change_must_be_valid_with_the_hub_resource_that_may_return(self, repository: Repository) -> None:
        """A change must be valid with the version on trial and with the version before, which may return."""
        connector = {"name": "far", "type": "amqp", "endpointHosts": [{"host": "localhost"}]}
        repository.take(desired(1, resource("AddressSpace", "default", connectors=[connector])), "aa", lambda _: None)
        uses = {"name": "up", "remoteAddress": "far/x"}
        document = resource("Address", "uses", address="uses/#", type="topic", forwarders=[uses])
        with pytest.raises(ConfigurationRejected, match="far"):
            repository.apply(given(document))
        repository.step(lambda versions: versions.confirmed_by_hub(1))
        repository.apply(given(document))
        failure = repository.take(desired(2), "aa", lambda _whole: None).failure
        assert failure is not None
        assert "far" in failure.why

    def test_deletion_leaves_the_hub_resource(self, repository: Repository) -> None:
        follow(repository, desired(1, QUEUE))
        repository.delete([("Address", "plant")])
        assert spec(repository, "Address", "plant")["type"] == "queue"


def test_file_of_a_newer_program_is_refused(repository: Repository) -> None:
    follow(repository, desired(1, QUEUE))
    file = repository.folder / "hub.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(RepositoryError, match=r"hub\.json .*9"):
        repository.load()
    file.write_text("{")
    with pytest.raises(RepositoryError, match=r"hub\.json .*damaged"):
        repository.load()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (resource("MessagingUser", "u", username="u", authentication={"type": "password"}), "does not manage users"),
        (
            resource("Gateway", "g", hub={"url": "amqp://a:1", "gateway": "other"}),
            "hub.gateway: the gateway's identity is set",
        ),
        (resource("Gateway", "g", hub={"url": "amqps://a:1", "tls": {}}), "spec.hub.tls: the gateway's identity"),
    ],
)
def test_fields_outside_the_hub_part_are_refused(repository: Repository, document: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationRejected, match=words):
        check_resources(given(document))
    failure = repository.take(desired(1, document), "aa", lambda _whole: None).failure
    assert failure is not None
    assert words in failure.why


def test_hub_part_with_duplicates_is_refused() -> None:
    with pytest.raises(ConfigurationRejected, match=r"given\.yaml:\d+: .*twice"):
        check_resources(given(QUEUE, QUEUE))
