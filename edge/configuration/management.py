"""Change addresses over AMQP: requests to `$management` change the applied resources as `waypost apply` and
`waypost delete` do. A change is validated as a whole, is on disk before its answer, and remains after a restart.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from zlib import crc32

from bridge.resources import schema
from bridge.resources.errors import ConfigurationError, ConfigurationRejected, ResourceOrigin
from bridge.resources.resource import OWN_VERSION, Resource
from edge.broker.amqp.administration import ManagementResponse
from edge.configuration.file import RepositoryError
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from edge.configuration.resources import AddressSpec

log = logging.getLogger(__name__)

_SOURCE: Final = "$management"
_ADDRESS: Final = "Address"
_SPACE: Final = "addressSpace"
_READ_ONLY: Final = ("name", "identity", "messages", "unsettled", "consumers")
"""Attributes of an address that READ returns and a client cannot set."""
_NAME_CHARACTERS_MAX: Final = 200


class AddressAdministration:
    """Implements `edge.broker.amqp.administration.Administration` over the repository of a data directory."""

    def __init__(self, repository: Repository, reload: Callable[[], Awaitable[None]]) -> None:
        """`reload` applies the stored resources to the gateway."""
        self._repository = repository
        self._reload = reload
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()

    def change(
        self, operation: str, name: str, attributes: Mapping[str, Any], done: Callable[[ManagementResponse], None]
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._change(operation, name, attributes, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _change(
        self, operation: str, name: str, attributes: Mapping[str, Any], done: Callable[[ManagementResponse], None]
    ) -> None:
        done(await self.change_by(_SOURCE, operation, name, attributes))

    async def change_by(
        self,
        user: str,
        operation: str,
        name: str,
        attributes: Mapping[str, Any],
        check: Callable[[Mapping[str, Any] | None], None] = lambda _spec: None,
    ) -> ManagementResponse:
        """Make the change for a user; it is on disk and in force on return, or the response has the error.

        `check` gets the present spec, None without one, and raises to prevent the change.
        """
        async with self._one_at_a_time:
            answer = await asyncio.to_thread(self.changed, operation, name, attributes, user, check)
        if answer.status < 300:
            try:
                await self._reload()
            except (ConfigurationRejected, RepositoryError) as error:
                log.warning("the configuration is unchanged: %s", error)
                answer = ManagementResponse(500, f"stored, but not applied: {error}")
        return answer

    def changed(
        self,
        operation: str,
        name: str,
        attributes: Mapping[str, Any],
        user: str = _SOURCE,
        check: Callable[[Mapping[str, Any] | None], None] = lambda _spec: None,
    ) -> ManagementResponse:
        """Change the repository and return the response. Blocks until it is on disk. `user`: for the history."""
        try:
            found = self._resource(name)
            check(found.document["spec"] if found is not None else None)
            if operation == "CREATE":
                return self._created(name, attributes, found, user)
            if found is None:
                return ManagementResponse(404, f"the applied resources have no address {name!r}")
            if operation == "DELETE":
                self._repository.delete([found.key], by=user)
                return ManagementResponse(204, "No Content", {})
            return self._applied(found.name, {**found.document["spec"], **_spec(attributes)}, 200, user)
        except ConfigurationRejected as rejected:
            return ManagementResponse(400, "; ".join(f"{error.path}: {error.message}" for error in rejected.errors))
        except RepositoryError as error:
            return ManagementResponse(500, str(error))

    def _created(
        self, name: str, attributes: Mapping[str, Any], found: Resource | None, user: str
    ) -> ManagementResponse:
        if found is not None:
            return ManagementResponse(409, f"address {name!r} already exists")
        return self._applied(self._free_name(name), {**_spec(attributes), "address": name}, 201, user)

    def _applied(self, resource_name: str, spec: Mapping[str, Any], status: int, user: str) -> ManagementResponse:
        document = {
            "apiVersion": OWN_VERSION,
            "kind": _ADDRESS,
            "metadata": {"name": resource_name},
            "spec": {key: value for key, value in spec.items() if value is not None},
        }
        resource = schema.build(KINDS, document, ResourceOrigin(_SOURCE))
        if not isinstance(resource, Resource):
            raise ConfigurationRejected(resource)
        self._repository.apply([resource], by=user)
        return ManagementResponse(status, "Created" if status == 201 else "OK", document["spec"])

    def _resource(self, address: str) -> Resource | None:
        for resource in self._repository.load().resources:
            spec = resource.spec
            if isinstance(spec, AddressSpec) and spec.address == address and spec.address_space is None:
                return resource
        return None

    def _free_name(self, address: str) -> str:
        """Return a resource name derived from the address; a checksum is added when that name is in use."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", address).strip("-._")[:_NAME_CHARACTERS_MAX].rstrip("-._") or "address"
        if any(resource.key == (_ADDRESS, plain) for resource in self._repository.load().resources):
            return f"{plain}-{crc32(address.encode('utf-8', 'replace')):08x}"
        return plain


def _spec(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec for these attributes; `addressType` is its type. None removes a field. Raises
    ConfigurationRejected for an address of another space: the client has rights in the gateway's own one only."""
    if attributes.get(_SPACE) is not None:
        words = "only addresses of the gateway's own space can be changed here"
        raise ConfigurationRejected([ConfigurationError(_SOURCE, 0, f"spec.{_SPACE}", words)])
    spec = {key: value for key, value in attributes.items() if key not in _READ_ONLY}
    if "addressType" in spec:
        spec["type"] = spec.pop("addressType")
    return spec
