"""Each step of an import may be repeated after an error, and changes nothing that is at the hub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cloud.fleet.device_store import FoundDevice, FoundSet
from cloud.fleet.hono.attempt import DeviceAttempt, WantedDevice, digests_of
from cloud.fleet.hono.device_credentials import convert_credentials
from cloud.fleet.hono.documents import GatewayChoice, convert_device
from cloud.fleet.hono.importer import TRANSIENT, HonoImporter
from cloud.fleet.hono.limits import RETRY_WAITS_S
from cloud.fleet.hono.report import RegistryOutcome, RegistryReport
from cloud.hub.devices.tenants import DeviceTenantDocument
from edge.output.errors import CommandError
from edge.remote.client import ConsoleClient
from tests.support.hono_registry import password_of

ADDED, UNCHANGED = RegistryOutcome.ADDED, RegistryOutcome.UNCHANGED
DIFFERS, WITHHELD = RegistryOutcome.DIFFERS, RegistryOutcome.WITHHELD
NAME = "4711"


class MemoryDevices:
    """Devices of a tenant in memory. `faults` are raised by the next changes, after or before they were made."""

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, Any]] = {}
        self.sets: dict[str, list[dict[str, Any]]] = {}
        self.tags: dict[str, int] = {}
        self.device_tags: dict[str, int] = {}
        self.faults: list[tuple[str, bool]] = []
        """Code of an error, and whether the change was made."""
        self.changes = 0
        self.revisions = 0

    def add(self, device: str, document: dict[str, Any]) -> str:
        if device in self.documents:
            raise CommandError("there already", error="conflict")
        self._change(lambda: self._keep(device, document))
        return str(self.tags[device])

    def _keep(self, device: str, document: dict[str, Any]) -> None:
        self.documents[device] = {**document, "enabled": True}
        self.tags[device] = self.device_tags[device] = self._revision()

    def _revision(self) -> int:
        self.revisions += 1
        return self.revisions

    def replace(self, device: str, document: dict[str, Any]) -> None:
        """Change a registration, as another user."""
        self.documents[device] = {**document, "enabled": True}
        self.device_tags[device] = self._revision()

    def get(self, device: str) -> FoundDevice:
        if device not in self.documents:
            raise CommandError("no device", error="not-found")
        document = {**self.documents[device], "status": {"created": "now"}}
        return FoundDevice(document, str(self.device_tags[device]))

    def find(self, filters: list[dict[str, Any]], gateways: bool | None) -> Iterator[dict[str, Any]]:
        for name in self.documents:
            yield {"id": name, **self.get(name).document}

    def remove(self, device: str) -> None:
        del self.documents[device]
        self.sets.pop(device, None)

    def credentials(self, device: str) -> FoundSet:
        self.get(device)
        return FoundSet(self.sets.get(device, []), str(self.tags[device]))

    def set_credentials(self, device: str, wanted: list[dict[str, Any]], tag: str) -> None:
        if tag != str(self.tags[device]):
            raise CommandError("changed", error="changed-meanwhile")
        self._change(lambda: self.show(device, wanted))

    def show(self, device: str, wanted: list[dict[str, Any]]) -> None:
        """Keep credentials as the API shows them."""
        kept = ("not-before", "not-after")
        self.sets[device] = [
            {
                "type": each["type"], "auth-id": each["auth-id"], "enabled": True,
                "secrets": [
                    {"id": "x", "enabled": True, **{name: one[name] for name in kept if name in one}}
                    for one in each["secrets"]
                ],
            }
            for each in wanted
        ]  # fmt: skip
        self.tags[device] = self._revision()

    def _change(self, work: Any) -> None:
        fault, made = self.faults.pop(0) if self.faults else ("", True)
        if made:
            work()
            self.changes += 1
        if fault:
            raise CommandError(fault, error=fault)


@pytest.fixture
def store() -> MemoryDevices:
    return MemoryDevices()


def wanted() -> WantedDevice:
    entity = convert_device(NAME, msgspec.Raw(b'{"ext":{"brand":"ACME"}}'), GatewayChoice(), print)
    raws = [msgspec.Raw(msgspec.json.encode(password_of(NAME)))]
    found = convert_credentials(raws, DeviceTenantDocument(), print, print)
    return WantedDevice(NAME, entity, found)


def attempt(store: MemoryDevices, *, dry_run: bool = False, addable: bool = True) -> DeviceAttempt:
    return DeviceAttempt(store, wanted(), digests_of(store, [NAME]).get(NAME), addable=addable, dry_run=dry_run)


def finish(tried: DeviceAttempt) -> tuple[RegistryOutcome, RegistryOutcome]:
    credentials = wanted().credentials
    assert credentials is not None
    return repeated(tried.put), repeated(lambda: tried.put_credentials(credentials))


def repeated(step: Any) -> RegistryOutcome:
    for _ in range(9):
        try:
            found: RegistryOutcome = step()
        except CommandError as why:
            if why.error not in TRANSIENT:
                raise
        else:
            return found
    raise AssertionError("it does not end")


class TestAttempt:
    """Orders of events around the two changes of a device."""

    def test_a_second_run_changes_nothing(self, store: MemoryDevices) -> None:
        assert finish(attempt(store)) == (ADDED, ADDED)
        assert finish(attempt(store)) == (UNCHANGED, UNCHANGED)
        assert store.changes == 2

    def test_a_dry_run_changes_nothing(self, store: MemoryDevices) -> None:
        assert finish(attempt(store, dry_run=True)) == (ADDED, ADDED)
        store.add(NAME, {"ext": {"brand": "ACME"}})
        assert finish(attempt(store, dry_run=True)) == (UNCHANGED, ADDED)
        assert finish(attempt(store)) == (UNCHANGED, ADDED)
        assert finish(attempt(store, dry_run=True)) == (UNCHANGED, UNCHANGED)
        assert store.changes == 2

    @pytest.mark.parametrize("made", [True, False])
    @pytest.mark.parametrize("fault", sorted(TRANSIENT))
    @pytest.mark.parametrize("at", [0, 1])
    def test_a_change_with_an_unknown_outcome_is_made_once(
        self, store: MemoryDevices, at: int, fault: str, made: bool
    ) -> None:
        store.faults = [*[("", True)] * at, (fault, made)]
        assert finish(attempt(store)) == (ADDED, ADDED)
        assert store.changes == 2
        assert len(store.sets[NAME]) == 1

    def test_a_run_that_ended_between_both_changes_is_completed(self, store: MemoryDevices) -> None:
        assert attempt(store).put() is ADDED
        assert finish(attempt(store)) == (UNCHANGED, ADDED)

    def test_a_device_of_another_user_stays(self, store: MemoryDevices) -> None:
        tried = attempt(store)
        store.add(NAME, {"ext": {"brand": "OTHER"}})
        assert finish(tried) == (DIFFERS, WITHHELD)
        assert store.documents[NAME]["ext"] == {"brand": "OTHER"}
        assert attempt(store).put() is DIFFERS

    @pytest.mark.parametrize("dry_run", [False, True])
    def test_revoked_credentials_are_not_given_back(self, store: MemoryDevices, dry_run: bool) -> None:
        assert finish(attempt(store)) == (ADDED, ADDED)
        store.show(NAME, [])
        assert finish(attempt(store, dry_run=dry_run)) == (UNCHANGED, WITHHELD)
        assert store.sets[NAME] == []

    def test_a_removed_device_is_not_given_back(self, store: MemoryDevices) -> None:
        assert finish(attempt(store)) == (ADDED, ADDED)
        store.remove(NAME)
        assert attempt(store, addable=False).put() is WITHHELD
        assert attempt(store, addable=False, dry_run=True).put() is WITHHELD
        assert not store.documents

    def test_a_device_that_was_changed_meanwhile_gets_no_credentials(self, store: MemoryDevices) -> None:
        assert attempt(store).put() is ADDED
        store.replace(NAME, {"ext": {"brand": "ACME"}})
        assert finish(attempt(store)) == (UNCHANGED, WITHHELD), "it is the same again, and may have been another one"

    def test_credentials_that_are_revoked_during_the_attempt_stay_revoked(self, store: MemoryDevices) -> None:
        tried = attempt(store)
        assert tried.put() is ADDED
        store.show(NAME, [password_of("other")])
        store.show(NAME, [])
        assert finish(tried)[1] is WITHHELD
        store.faults = [("", True), ("connection-lost", True)]
        store.remove(NAME)
        tried, found = attempt(store), wanted().credentials
        assert found is not None
        assert tried.put() is ADDED
        with pytest.raises(CommandError):
            tried.put_credentials(found)
        store.show(NAME, [])
        assert tried.put_credentials(found) is WITHHELD

    def test_credentials_of_another_user_stay(self, store: MemoryDevices) -> None:
        tried = attempt(store)
        assert tried.put() is ADDED
        store.show(NAME, [password_of("other")])
        before = list(store.sets[NAME])
        assert finish(tried)[1] is DIFFERS
        assert store.sets[NAME] == before

    def test_credentials_that_others_change_all_the_time_are_an_error(self, store: MemoryDevices) -> None:
        tried = attempt(store)
        tried.put()
        store.faults = [("changed-meanwhile", False)] * 9
        found = wanted().credentials
        assert found is not None
        with pytest.raises(CommandError, match="all the time"):
            tried.put_credentials(found)

    def test_a_device_that_was_removed_meanwhile_is_an_error(self, store: MemoryDevices) -> None:
        tried = attempt(store)
        tried.put()
        tried._tag = ""  # the answer was lost
        store.remove(NAME)
        found = wanted().credentials
        assert found is not None
        with pytest.raises(CommandError, match="no device"):
            tried.put_credentials(found)


class TestPatience:
    """Waits while the hub is away."""

    def test_a_hub_that_stays_away_ends_the_run(self) -> None:
        waits: list[float] = []
        importer = HonoImporter(ConsoleClient("http://127.0.0.1:9"), RegistryReport(), wait=waits.append)

        def step() -> None:
            raise CommandError("away", error="unreachable")

        with pytest.raises(CommandError, match="away"):
            importer._repeated(step)
        assert waits == list(RETRY_WAITS_S)

    @pytest.mark.parametrize("code", ["invalid-request", "server-failed", "no-right"])
    def test_another_error_is_not_repeated(self, code: str) -> None:
        waits: list[float] = []
        importer = HonoImporter(ConsoleClient("http://127.0.0.1:9"), RegistryReport(), wait=waits.append)

        def step() -> None:
            raise CommandError("no", error=code)

        with pytest.raises(CommandError, match="no"):
            importer._repeated(step)
        assert waits == []
