"""The artefacts that a command works with: over HTTP, or in the data directory of a hub.

In the data directory a command runs the service of the hub itself, so both ways follow the same rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from cloud.fleet.place import DEFAULT_TENANT, HubPlace, current_user, hub_of
from edge.output.errors import CommandError, Exit
from edge.remote.client import ConsoleClient

if TYPE_CHECKING:
    import sqlalchemy as sa

    from cloud.hub.artefacts.service import HubArtefacts

T = TypeVar("T")

COMPLETE_S: Final = 300.0
"""Time limit for the verification of an image: 1 GiB from an object store at 4 MiB/s."""
PART_S: Final = 60.0
"""Time limit for the answer to a part."""
BUSY_ATTEMPTS_MAX: Final = 60
"""Times that a part is sent again while the hub is busy, or has had enough requests of this user."""
BUSY_S: Final = 1.0
"""Pause before it is sent again."""
_PAGE_ROWS: Final = 500
"""Reports of one transaction."""
_BUSY: Final = ("too-many-requests", "not-available")


class ArtefactStore(Protocol):
    """Artefacts and keys of one tenant, as documents of the API. Methods raise CommandError."""

    def add(self, envelope: bytes) -> dict[str, Any]:
        """Add an artefact by its signed manifest; return its `ArtefactUpload`."""

    def put(self, name: str, version: str, number: int, content: bytes) -> None:
        """Store a part of its image."""

    def complete(self, name: str, version: str) -> dict[str, Any]:
        """Verify its image, and store it for good."""

    def get(self, name: str, version: str) -> dict[str, Any]:
        """Return its `ArtefactUpload`."""

    def find(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield artefacts by name and sequence; all of them without a name."""

    def remove(self, name: str, version: str) -> None:
        """Remove an artefact with its image."""

    def reports(self, given: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield reports of devices. `given`: values of `artefact`, `version`, `device` and `state`; empty for all."""

    def keys(self) -> list[dict[str, Any]]:
        """Return the trusted keys."""

    def add_key(self, pem: str, label: str) -> dict[str, Any]:
        """Trust a key."""

    def remove_key(self, key: str) -> None:
        """Trust a key no longer."""


class _RemoteArtefacts:
    """Artefacts over HTTP."""

    def __init__(self, client: ConsoleClient, tenant: str) -> None:
        self._client = client
        self._tenant = tenant or None

    def add(self, envelope: bytes) -> dict[str, Any]:
        return self._send("artefacts", "POST", envelope, "application/cose")

    def put(self, name: str, version: str, number: int, content: bytes) -> None:
        for attempt in range(BUSY_ATTEMPTS_MAX):
            try:
                self._send(f"{_path(name, version)}/parts/{number}", "PUT", content, "application/octet-stream", PART_S)
            except CommandError as error:
                if error.error not in _BUSY or attempt == BUSY_ATTEMPTS_MAX - 1:
                    raise
                time.sleep(BUSY_S)
            else:
                return

    def complete(self, name: str, version: str) -> dict[str, Any]:
        return self._ask(f"{_path(name, version)}/complete", method="POST", answer_s=COMPLETE_S)

    def get(self, name: str, version: str) -> dict[str, Any]:
        return self._ask(_path(name, version))

    def find(self, name: str) -> Iterator[dict[str, Any]]:
        yield from self._client.pages("artefacts", "artefacts", {"name": name or None, "tenant": self._tenant})

    def remove(self, name: str, version: str) -> None:
        self._ask(_path(name, version), method="DELETE")

    def reports(self, given: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        query = {name: value or None for name, value in given.items()}
        yield from self._client.pages("artefact-reports", "reports", {"tenant": self._tenant, **query})

    def keys(self) -> list[dict[str, Any]]:
        return list(self._ask("artefact-keys")["keys"])

    def add_key(self, pem: str, label: str) -> dict[str, Any]:
        return self._ask("artefact-keys", method="POST", body={"pem": pem, "label": label})

    def remove_key(self, key: str) -> None:
        self._ask(f"artefact-keys/{quote(key, safe='')}", method="DELETE")

    def _ask(self, path: str, **given: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._client.ask(path, tenant=self._tenant, **given)
        return found

    def _send(self, path: str, method: str, content: bytes, kind: str, answer_s: float = PART_S) -> dict[str, Any]:
        with self._client.open(
            path, method=method, body=content, content_type=kind, answer_s=answer_s, tenant=self._tenant
        ) as answer:
            found: dict[str, Any] = self._client.document(answer, method)
            return found


class _LocalArtefacts:
    """Artefacts in a data directory."""

    def __init__(self, service: HubArtefacts, runner: asyncio.Runner, registry: sa.URL, tenant: str) -> None:
        self._service = service
        self._runner = runner
        self._registry = registry
        self._tenant = tenant

    def add(self, envelope: bytes) -> dict[str, Any]:
        from cloud.hub.artefacts.documents import upload_document

        return _plain(upload_document(self._run(self._service.add(self._tenant, envelope, current_user()))))

    def put(self, name: str, version: str, number: int, content: bytes) -> None:
        self._run(self._service.put(self._tenant, name, version, number, content))

    def complete(self, name: str, version: str) -> dict[str, Any]:
        from cloud.hub.artefacts.documents import artefact_document

        return _plain(artefact_document(self._run(self._service.complete(self._tenant, name, version))))

    def get(self, name: str, version: str) -> dict[str, Any]:
        from cloud.hub.artefacts.documents import upload_document

        return _plain(upload_document(self._run(self._service.get(self._tenant, name, version))))

    def find(self, name: str) -> Iterator[dict[str, Any]]:
        from cloud.hub.artefacts.documents import artefact_document
        from cloud.hub.limits import TENANT_ARTEFACTS_MAX
        from cloud.hub.registry.artefacts import FIRST_PLACE

        rows = self._run(self._service.page(self._tenant, name, FIRST_PLACE, TENANT_ARTEFACTS_MAX))
        yield from (_plain(artefact_document(row)) for row in rows)

    def remove(self, name: str, version: str) -> None:
        self._run(self._service.remove(self._tenant, name, version))

    def reports(self, given: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        from cloud.hub.device_updates.documents import report_document
        from cloud.hub.registry.device_updates import DeviceUpdates, UpdateFilter
        from cloud.hub.registry.opening import open_registry

        artefact, version, device, state = (given[name] or None for name in ("artefact", "version", "device", "state"))
        wanted = UpdateFilter(self._tenant, artefact, version, device, state)
        with contextlib.closing(open_registry(self._registry).database) as database:
            updates, after = DeviceUpdates(database), None
            while rows := updates.page(wanted, after, _PAGE_ROWS):
                yield from (_plain(report_document(row)) for row in rows)
                after = rows[-1].name, rows[-1].version, rows[-1].device

    def keys(self) -> list[dict[str, Any]]:
        from cloud.hub.artefacts.documents import key_document

        return [_plain(key_document(row)) for row in self._run(self._service.keys(self._tenant))]

    def add_key(self, pem: str, label: str) -> dict[str, Any]:
        from bridge.artefacts.keys import MakerPublicKey
        from cloud.hub.artefacts.documents import key_document

        key = MakerPublicKey.parse(pem)
        return _plain(key_document(self._run(self._service.add_key(self._tenant, key, label, current_user()))))

    def remove_key(self, key: str) -> None:
        self._run(self._service.remove_key(self._tenant, key))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the service. Raises CommandError."""
        from cloud.hub.artefacts.service import ArtefactIncomplete, ArtefactsBusy, StoreFailed
        from cloud.hub.registry.artefacts import ArtefactExists, ArtefactInUse, ArtefactsFull, UnknownArtefact

        try:
            return self._runner.run(work)
        except UnknownArtefact as error:
            raise CommandError(f"no artefact {error}", "list them: waypost artefact list", error="not-found") from None
        except ArtefactInUse as error:
            raise CommandError(str(error), "stop it first: waypost campaign stop", error="conflict") from None
        except (ArtefactExists, ArtefactIncomplete) as error:
            raise CommandError(str(error), error="conflict") from None
        except ArtefactsFull as error:
            raise CommandError(str(error), "remove artefacts or keys", error="request-refused") from None
        except (ArtefactsBusy, StoreFailed) as error:
            raise CommandError(str(error), error="not-available", code=Exit.FAILED) from None


@contextlib.contextmanager
def open_artefacts(hub: HubPlace, tenant: str) -> Iterator[ArtefactStore]:
    """Open the artefacts of a tenant of a hub. Raises CommandError."""
    if hub.client is not None:
        yield _RemoteArtefacts(hub.client, tenant)
        return
    from cloud.hub.artefacts.image_store import ImageStore
    from cloud.hub.artefacts.service import HubArtefacts
    from cloud.hub.opening import LAKE
    from cloud.hub.peers import tenant_fault
    from cloud.place.place import place_of

    if (fault := tenant_fault(tenant or DEFAULT_TENANT)) is not None:
        raise CommandError(fault, error="invalid-name", code=Exit.USAGE)
    with hub_of(hub) as (settings, registry), asyncio.Runner() as runner:
        lake = settings.lake or hub.data / LAKE
        if isinstance(lake, Path) and not lake.is_dir():
            hint = "give the configuration of the hub (--config), or its address (--hub)"
            raise CommandError(f"{lake} is no lake", hint, error="no-data-directory", code=Exit.USAGE)
        store = ImageStore(place_of(lake))
        service = HubArtefacts(registry, store, lambda: time.time_ns() // 1_000)
        try:
            runner.run(service.open())
            yield _LocalArtefacts(service, runner, registry, tenant or DEFAULT_TENANT)
        finally:
            runner.run(service.close())


def _path(name: str, version: str) -> str:
    return f"artefacts/{quote(name, safe='')}/{quote(version, safe='')}"


def _plain(document: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(document)
    return found
