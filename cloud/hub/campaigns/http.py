"""Campaigns over HTTP.

``GET  /api/v1/campaigns``                          a page, the newest first: ``?after=&limit=&tenant=``
``POST /api/v1/campaigns``                          start one (`NewCampaign`): ``?tenant=``
``GET  /api/v1/campaigns/<id>``                     one, with the numbers of its devices by wave and phase
``GET  /api/v1/campaigns/<id>/devices``             its devices: ``?phase=&after=&limit=``
``POST /api/v1/campaigns/<id>/pause|resume|stop``   with ``If-Match``, only if it is still as it was read

Reading needs the right to view, changes the right to manage: for one's own tenant, or with ``$fleet`` for every tenant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.campaign import CampaignPace
from cloud.hub.campaigns.documents import (
    CampaignDevicePage,
    CampaignPage,
    NewCampaign,
    campaign_document,
    campaign_tag,
    member_document,
)
from cloud.hub.campaigns.service import CampaignsBusy, HubCampaigns
from cloud.hub.campaigns.starting import CampaignDraft, NoDeviceChosen, find_devices, start_campaign
from cloud.hub.changes import note_change
from cloud.hub.json_http import answering, json_response
from cloud.hub.labels import parse_selector
from cloud.hub.page_position import decode_time_position, wrong_position
from cloud.hub.peers import DEFAULT_TENANT, tenant_fault
from cloud.hub.registry.campaign_rows import CampaignRecord, UnknownCampaign, WaveCounts
from cloud.hub.registry.campaigns import CampaignError, Campaigns
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_choice import DeviceTarget
from cloud.hub.registry.device_tenants import UnknownDeviceTenant
from cloud.hub.rollout import MemberPhase, WavesError
from cloud.hub.scope import scope_of
from edge.broker.http.access import HttpAccess
from edge.broker.http.json_documents import read_document
from edge.broker.http.preconditions import precondition_of
from edge.broker.http.queries import limit_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Operation

CAMPAIGNS: Final = "/api/v1/campaigns"
PHASES: Final = tuple(each.value for each in MemberPhase)

answered: Final = answering(
    {
        CampaignError: 409,
        WavesError: 400,
        NoDeviceChosen: 404,
        UnknownDeviceTenant: lambda why: RequestRefused(404, f"no tenant {why} of devices is yours").response(),
        UnknownCampaign: lambda why: RequestRefused(404, f"no campaign {str(why)[:64]}").response(),
        CampaignsBusy: 503,
    }
)


def campaign_routes(campaigns: HubCampaigns, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of this module."""
    api = _CampaignApi(campaigns, access)
    return [
        HttpRoute(CAMPAIGNS, answered(api.page), methods=PURE),
        HttpRoute(CAMPAIGNS, answered(api.start, "campaign.start"), methods=("POST",)),
        HttpRoute(CAMPAIGNS + "/{id}", answered(api.show), methods=PURE),
        HttpRoute(CAMPAIGNS + "/{id}/devices", answered(api.devices), methods=PURE),
        HttpRoute(CAMPAIGNS + "/{id}/{step}", answered(api.step, "campaign.step"), methods=("POST",)),
    ]


class _CampaignApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(self, campaigns: HubCampaigns, access: HttpAccess) -> None:
        self._campaigns = campaigns
        self._access = access

    async def page(self, request: Request) -> Response:
        """List campaigns."""
        scope, query = await scope_of(self._access, request), request.query_params
        tenant = query.get("tenant") or scope.tenant
        if tenant is not None and (tenant_fault(tenant) is not None or not scope.covers(tenant)):
            raise RequestRefused(403, f"tenant {tenant[:255]} is outside your scope")
        limit, text = limit_of(query), query.get("after")
        after = decode_time_position(text) if text else None

        def work(database: Database) -> list[tuple[CampaignRecord, WaveCounts]]:
            campaigns = Campaigns(database)
            return [(each, campaigns.counts(each.id)) for each in campaigns.page(tenant, after, limit + 1)]

        rows = await self._campaigns.read(work)
        last = rows[limit - 1][0] if len(rows) > limit else None
        following = None if last is None else f"{last.made_at}-{last.id}"
        shown = [campaign_document(record, counts) for record, counts in rows[:limit]]
        return json_response(CampaignPage(campaigns=shown, next=following))

    async def start(self, request: Request) -> Response:
        """Start a campaign."""
        tenant, by = await self._tenant_and_user(request)
        new = await read_document(request, NewCampaign)
        if not (new.devices or new.selector or new.group):
            raise RequestRefused(400, "choose the devices: devices, selector or group is missing")
        draft = draft_of(tenant, by, new)
        async with self._campaigns.starting:
            members = await self._campaigns.read(lambda database: find_devices(database, draft))
            record = await self._campaigns.change(lambda database: start_campaign(Campaigns(database), draft, members))
        about = {"artefact": f"{new.artefact} {new.version}", "waves": new.waves, "why": new.note}
        note_change(request, subject=record.id, tenant=tenant, after=about)
        return await self._shown(record.tenant, record.id, 201)

    async def show(self, request: Request) -> Response:
        """Show a campaign."""
        scope = await scope_of(self._access, request)
        return await self._shown(scope.tenant, request.path_params["id"], 200)

    async def devices(self, request: Request) -> Response:
        """List the devices of a campaign."""
        scope, query = await scope_of(self._access, request), request.query_params
        identifier, limit, after, phase = request.path_params["id"], limit_of(query), query.get("after", ""), None
        if query.get("phase"):
            if query["phase"] not in PHASES:
                raise RequestRefused(400, f"phase must be one of: {', '.join(PHASES)}")
            phase = MemberPhase(query["phase"])
        if "\0" in after:
            raise wrong_position()
        await self._find(scope.tenant, identifier)
        rows = await self._campaigns.read(
            lambda database: Campaigns(database).members(identifier, phase, after, limit + 1)
        )
        following = rows[limit - 1].member.device if len(rows) > limit else None
        shown = [member_document(row) for row in rows[:limit]]
        return json_response(CampaignDevicePage(devices=shown, next=following))

    async def step(self, request: Request) -> Response:
        """Pause, resume or stop a campaign."""
        scope = await scope_of(self._access, request, Operation.MANAGE)
        identifier, step = request.path_params["id"], request.path_params["step"]
        steps: dict[str, Callable[[Campaigns], CampaignRecord]] = {
            "pause": lambda campaigns: campaigns.pause(identifier, check),
            "resume": lambda campaigns: campaigns.resume(identifier, check),
            "stop": lambda campaigns: campaigns.stop(identifier, check),
        }
        if step not in steps:
            raise RequestRefused(404, f"unknown step; expected one of: {', '.join(steps)}")
        condition = precondition_of(request)

        def check(present: CampaignRecord) -> None:
            condition.check(campaign_tag(present))

        found = await self._find(scope.tenant, identifier)
        note_change(request, action=f"campaign.{step}", tenant=found.tenant, subject=identifier)
        await self._campaigns.change(lambda database: steps[step](Campaigns(database)))
        return await self._shown(scope.tenant, identifier, 200)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _find(self, tenant: str | None, identifier: str) -> CampaignRecord:
        """Return a campaign of this tenant, or of any. Raises `UnknownCampaign`."""
        record = await self._campaigns.read(lambda database: Campaigns(database).get(identifier))
        if tenant not in (None, record.tenant):
            raise UnknownCampaign(identifier)
        return record

    async def _shown(self, tenant: str | None, identifier: str, status: int) -> Response:
        record = await self._find(tenant, identifier)
        counts = await self._campaigns.read(lambda database: Campaigns(database).counts(identifier))
        answer = json_response(campaign_document(record, counts), status)
        answer.headers["ETag"] = campaign_tag(record)
        return answer

    async def _tenant_and_user(self, request: Request) -> tuple[str, str]:
        """Return tenant and user of a change. Raises `RequestRefused`."""
        scope = await scope_of(self._access, request, Operation.MANAGE)
        async with self._access.admitted(request) as (grant, _):
            by = grant.user if grant is not None else ""
        tenant = request.query_params.get("tenant") or scope.tenant or DEFAULT_TENANT
        if tenant_fault(tenant) is not None or not scope.covers(tenant):
            raise RequestRefused(403, f"tenant {tenant[:255]} is outside your scope")
        note_change(request, tenant=tenant)
        return tenant, by


def draft_of(tenant: str, by: str, new: NewCampaign) -> CampaignDraft:
    """Return the draft of a document. Raises `LabelError`."""
    return CampaignDraft(
        tenant=tenant,
        devices_of=new.device_tenant or tenant,
        name=new.artefact,
        version=new.version,
        target=DeviceTarget(tuple(new.devices), parse_selector(new.selector) if new.selector else None, new.group),
        waves=new.waves,
        pace=CampaignPace(float(new.soak_s), float(new.away_s), new.failures_max, new.enough_percent),
        ends_at=None if new.ends_at is None else int(new.ends_at.timestamp() * 1_000_000),
        made_by=by,
        note=new.note,
    )
