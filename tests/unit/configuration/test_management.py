"""Requests of `$management` as changes of the applied resources."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from edge.broker.amqp.administration import ManagementResponse
from edge.broker.model.addresses import AddressType
from edge.configuration.file import RepositoryError
from edge.configuration.management import AddressAdministration
from edge.configuration.repository import Repository
from edge.configuration.resources import AddressSpec


async def _no_reload() -> None:
    pass


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.fixture
def administration(repository: Repository) -> AddressAdministration:
    return AddressAdministration(repository, _no_reload)


def specs(repository: Repository) -> dict[str, AddressSpec]:
    return {r.name: r.spec for r in repository.load().resources if isinstance(r.spec, AddressSpec)}


def test_resources_are_created_updated_and_deleted(
    administration: AddressAdministration, repository: Repository
) -> None:
    made = administration.changed("CREATE", "orders/eu", {"addressType": "queue", "maxConsumers": 2})
    assert (made.status, made.body) == (201, {"address": "orders/eu", "type": "queue", "maxConsumers": 2})
    assert specs(repository)["orders-eu"].type is AddressType.QUEUE
    changed = administration.changed("UPDATE", "orders/eu", {"maxConsumers": None, "messageTtl": {"maximum": "1h"}})
    assert changed.status == 200
    spec = specs(repository)["orders-eu"]
    assert spec.consumers_max is None
    assert spec.ttl_max_s == 3600
    assert administration.changed("DELETE", "orders/eu", {}).status == 204
    assert specs(repository) == {}


@pytest.mark.parametrize(
    ("operation", "name", "attributes", "status", "words"),
    [
        ("CREATE", "a", {}, 400, "type"),
        ("CREATE", "a", {"addressType": "heap"}, 400, "spec.type"),
        ("CREATE", "a", {"addressType": "queue", "maxConsumer": 1}, 400, "maxConsumers"),
        ("CREATE", "a", {"addressType": "queue", "deadletter": "nowhere"}, 400, "spec.deadletter"),
        ("CREATE", "a", {"addressType": "queue", "addressSpace": "acme"}, 400, "addressSpace"),
        ("CREATE", "there", {"addressType": "queue"}, 409, "there"),
        ("UPDATE", "there", {"addressSpace": "acme"}, 400, "gateway's own space"),
        ("UPDATE", "a", {"addressType": "queue"}, 404, "'a'"),
        ("UPDATE", "there", {"maxConsumers": 0}, 400, "spec.maxConsumers"),
        ("DELETE", "a", {}, 404, "'a'"),
    ],
)
def test_invalid_request_is_reported_and_changes_nothing(
    administration: AddressAdministration,
    repository: Repository,
    operation: str,
    name: str,
    attributes: dict[str, Any],
    status: int,
    words: str,
) -> None:
    administration.changed("CREATE", "there", {"addressType": "topic"})
    version = repository.version
    answer = administration.changed(operation, name, attributes)
    assert answer.status == status
    assert words in answer.description
    assert repository.version == version


def test_addresses_with_equal_resource_names_are_distinguished(
    administration: AddressAdministration, repository: Repository
) -> None:
    for address in ("a/b", "a b", "#"):
        assert administration.changed("CREATE", address, {"addressType": "queue"}).status == 201
    assert {spec.address for spec in specs(repository).values()} == {"a/b", "a b", "#"}


def test_answer_follows_the_effect_or_gives_the_reason(repository: Repository) -> None:
    order: list[str] = []
    answers: list[ManagementResponse] = []

    async def reload() -> None:
        order.append("reloaded")
        if len(order) > 2:
            raise RepositoryError("no")

    async def changes() -> None:
        administration = AddressAdministration(repository, reload)
        for name in ("a", "b"):
            done = asyncio.Event()

            def answered(answer: ManagementResponse, done: asyncio.Event = done) -> None:
                answers.append(answer)
                order.append("answered")
                done.set()

            administration.change("CREATE", name, {"addressType": "queue"}, answered)
            await done.wait()

    asyncio.run(changes())
    assert order == ["reloaded", "answered", "reloaded", "answered"]
    assert [answer.status for answer in answers] == [201, 500]
