"""Registry with artefacts, devices and campaigns, and a gateway that follows it, on a clock of the test."""

from __future__ import annotations

import json
from typing import Any, Final

from cloud.hub.campaign import CampaignPace
from cloud.hub.campaigns.starting import CampaignDraft, find_devices, start_campaign
from cloud.hub.registry.artefacts import ArtefactRow, RegisteredArtefacts
from cloud.hub.registry.campaign_rows import CampaignRecord
from cloud.hub.registry.campaigns import Campaigns
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_changes import DeviceChanges
from cloud.hub.registry.device_choice import DeviceTarget
from cloud.hub.registry.device_updates import DeviceUpdate, DeviceUpdates
from cloud.hub.registry.devices import DeviceLink, LinkKind, NewDeviceRow, RegisteredDevices, TenantLimits
from tests.support.device_pages import PageGateway

S: Final = 1_000_000
PACE: Final = CampaignPace(soak_s=10, away_s=100, failures_max=0, enough_percent=100)


class CampaignSite:
    """Registry with artefacts and devices, and a gateway that follows it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = 1_000
        self.campaigns = Campaigns(database, lambda _: self.now * S)
        self.sequence = 0
        self.hall, self.roof = PageGateway(("acme", "hall")), PageGateway(("acme", "roof"))

    def store(self, version: str, number: int) -> None:
        row = ArtefactRow("acme", "blinker", version, "firmware", number, f"{number:064}", 1, f"{number:032}", b"e", "k", 1, "a")  # fmt: skip  # noqa: E501
        artefacts = RegisteredArtefacts(self.database)
        artefacts.store(artefacts.add(row), 1)

    def register(self, device: str, *gateways: str, tenant: str = "acme", group: str = "", **labels: str) -> None:
        document: dict[str, Any] = {"enabled": True, "ext": {"waypost": {"gateways": gateways, "labels": labels}}}
        links = []
        if group:
            document["memberOf"], links = [group], [DeviceLink(LinkKind.MEMBER_OF, group)]
        new = NewDeviceRow(tenant, device, json.dumps(document), links, self.now * S, "anna")
        RegisteredDevices(self.database).add(new, TenantLimits("acme", lambda _: 1_000_000))

    def remove(self, device: str) -> None:
        RegisteredDevices(self.database).remove("acme", device, lambda _: None)

    def start(self, *patterns: str, version: str = "1.2.0", waves: str = "100%", **fields: Any) -> str:
        draft = self.draft(*patterns, version=version, waves=waves, **fields)
        return start_campaign(self.campaigns, draft, find_devices(self.database, draft)).id

    def draft(self, *patterns: str, version: str = "1.2.0", waves: str = "100%", **fields: Any) -> CampaignDraft:
        target = fields.pop("target", DeviceTarget(patterns or ("*",)))
        pace = PACE._replace(**{name: fields.pop(name) for name in PACE._fields if name in fields})
        given = {"devices_of": "acme", "ends_at": None, **fields}
        return CampaignDraft(
            tenant="acme", name="blinker", version=version, target=target, waves=waves, pace=pace, made_by="anna",
            note="", **given,
        )  # fmt: skip

    def run(self, campaign: str, seconds: int = 0) -> CampaignRecord:
        """Let time pass, and advance a campaign as far as it goes."""
        self.now += seconds
        while self.campaigns.has_step(campaign):  # as the looks of a hub
            while self.campaigns.advance(campaign):
                pass
        return self.campaigns.get(campaign)

    def report(
        self,
        device: str,
        *states: str,
        version: str = "1.2.0",
        reason: str = "",
        gateway: str = "hall",
        ago: int = 0,
        ahead: int = 0,
    ) -> None:
        """Let a hub take reports of a device together. `ago`: seconds since the gateway received them; `ahead`: by
        which the clock of the hub is ahead."""
        reports = []
        for state in states:
            self.sequence += 1
            name = ("acme", "blinker", version, device, state, reason, gateway, gateway, self.sequence)
            reports.append(DeviceUpdate(*name, (self.now - ago) * S, (self.now + ahead) * S))
        DeviceUpdates(self.database).record(reports)

    def phases(self, campaign: str) -> dict[str, str]:
        return {each.member.device: each.member.phase.value for each in self.campaigns.members(campaign, None, "", 999)}

    def offers(self, gateway: PageGateway | None = None) -> dict[str, list[tuple[str, bool]]]:
        """Let a gateway get its pages; return the offered versions of its devices, and whether they are withheld."""
        mine = gateway or self.hall
        mine.fetch(DeviceChanges(self.database))
        there = mine.devices.get("acme", {})
        return {
            name: [(offer.version, offer.withheld) for offer in each.offers]
            for name, each in there.items()
            if each.offers
        }
