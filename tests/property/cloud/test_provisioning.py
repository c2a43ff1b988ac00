"""Devices that gateways let in by certificate: any order of connections, reports, pages, restarts and changes at the
hub ends with what the registry says."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cloud.hub.registry.device_search import SearchPage, SearchQuery
from cloud.hub.registry.location import sqlite_url
from tests.support.device_certificates import DeviceAuthority
from tests.support.provisioning_site import (
    BY_COMMON_NAME,
    OWNER,
    ProvisioningGateway,
    ProvisioningRegistry,
    any_revision,
)

GATEWAYS: Final = ("gw1", "gw2")
AUTHORITY: Final = DeviceAuthority.make()
CERTIFICATES: Final = {name: AUTHORITY.issue(name) for name in ("a", "b")}
SUBJECTS: Final = {name: f"CN={name},O=ACME" for name in CERTIFICATES}

gateways = st.sampled_from(GATEWAYS)
shown = st.sampled_from(sorted(CERTIFICATES))


class Provisioning(RuleBasedStateMachine):
    """A registry and two gateways."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        place = Path(self.folder.name)
        self.registry = ProvisioningRegistry(sqlite_url(place / "registry.db"))
        self.gateways = {name: ProvisioningGateway(place / name, name, self.registry) for name in GATEWAYS}
        self.trusted = self.enabled = True

    @initialize()
    def begin(self) -> None:
        self.trust(trusted=True, provisions=True, enabled=True)

    def teardown(self) -> None:
        for each in self.gateways.values():
            each.settle()
        for each in self.gateways.values():
            each.settle()  # the other one may have brought something
            self.check(each)
            each.close()
        with contextlib.closing(self.registry.database):
            self.folder.cleanup()

    # --- at the hub ---------------------------------------------------------------------------------------------

    @rule(trusted=st.booleans(), provisions=st.booleans(), enabled=st.booleans())
    def trust(self, *, trusted: bool, provisions: bool, enabled: bool) -> None:
        document = AUTHORITY.document(**BY_COMMON_NAME, **{"auto-provisioning-enabled": provisions})
        self.registry.trust(*([document] if trusted else []), enabled=enabled)
        self.trusted, self.enabled = trusted, enabled

    @rule(name=st.sampled_from(["a", "b", "c"]), subject=shown, chosen=st.sets(gateways))
    def register(self, name: str, subject: str, chosen: set[str]) -> None:
        if name not in self.ids() and SUBJECTS[subject] not in self.subjects():
            self.registry.register(name, SUBJECTS[subject], *sorted(chosen))

    @rule(data=st.data(), enabled=st.booleans())
    def switch(self, data: st.DataObject, enabled: bool) -> None:
        if ids := self.ids():
            self.registry.replace(data.draw(st.sampled_from(ids)), enabled=enabled)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if ids := self.ids():
            self.registry.devices.remove(OWNER, data.draw(st.sampled_from(ids)), any_revision)

    @rule(data=st.data(), gateway=gateways)
    def move(self, data: st.DataObject, gateway: str) -> None:
        if ids := self.ids():
            self.registry.replace(data.draw(st.sampled_from(ids)), ext={"waypost": {"gateways": [gateway]}})

    # --- at the gateways ----------------------------------------------------------------------------------------

    @rule(gateway=gateways, certificate=shown)
    def connect(self, gateway: str, certificate: str) -> None:
        found = self.gateways[gateway]
        identity = found.connect(CERTIFICATES[certificate])
        assert found.known(CERTIFICATES[certificate]) == identity
        found.restart()
        assert found.known(CERTIFICATES[certificate]) == identity, "it was on disk"

    @rule(gateway=gateways)
    def take_page(self, gateway: str) -> None:
        self.gateways[gateway].page()

    @rule(gateway=gateways)
    def decide(self, gateway: str) -> None:
        if self.gateways[gateway].reports.waiting:
            self.gateways[gateway].decide()

    @rule(gateway=gateways)
    def decide_without_answer(self, gateway: str) -> None:
        """Lose the answer, with the process of the gateway."""
        found = self.gateways[gateway]
        if found.reports.waiting:
            waiting = list(found.reports.waiting)
            found.decide()
            found.reports.waiting.extend(waiting)
        found.restart()

    @rule(gateway=gateways)
    def attach(self, gateway: str) -> None:
        self.gateways[gateway].run(self.gateways[gateway].reports.attach)

    @rule(gateway=gateways)
    def restart(self, gateway: str) -> None:
        self.gateways[gateway].restart()

    @invariant()
    def names_are_those_of_the_certificate_or_of_the_registry(self) -> None:
        for each in self.gateways.values():
            for name, certificate in CERTIFICATES.items():
                assert each.known(certificate) in (None, name, *("a", "b", "c"))

    # --- the model ----------------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        found = self.registry.devices.search(OWNER, SearchQuery(SearchPage(100), ()))
        return [each.device for each in found.rows]

    def subjects(self) -> dict[str, str]:
        """Return the registered subjects, and their devices."""
        rows = ((name, self.registry.devices.credentials(OWNER, name).rows) for name in self.ids())
        return {row.auth_id: name for name, found in rows for row in found}

    def check(self, gateway: ProvisioningGateway) -> None:
        registered = self.subjects()
        for name, certificate in CERTIFICATES.items():
            device = registered.get(SUBJECTS[name])
            admitted = device is not None and self.trusted and self.enabled
            admitted = admitted and gateway.name in self.registry.gateways(device or "")
            admitted = admitted and self.registry.document(device or "")["enabled"]
            assert gateway.known(certificate) == (device if admitted else None)
        assert all(each.refused for each in gateway.provisioned), "the hub has decided about each one"


TestProvisioning = Provisioning.TestCase
TestProvisioning.settings = settings(max_examples=5, stateful_step_count=25, deadline=None)
