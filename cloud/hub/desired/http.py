"""Configurations, roll-outs and labels over HTTP.

``GET  /api/v1/configurations``                         gateways (wanted, in force, errors), a page, and selectors:
                                                        ``?state=unconfirmed&after=&limit=``
``POST /api/v1/configurations?selector=SELECTOR``       YAML: configuration of gateways with these labels, also later
``DELETE /api/v1/configurations?selector=SELECTOR``     end that
``POST /api/v1/plans?selector=SELECTOR``                YAML: what that would do; nothing is changed. With
                                                        ``?gateways=PATTERN,…`` what a roll-out to them would do
``GET  /api/v1/selectors``                              configurations of selectors, the latest first, with counts;
                                                        ``?selector=``: one with its YAML, without secrets
``GET  /api/v1/configurations/<gateway>``               one gateway with its versions, without secrets
``POST /api/v1/configurations/<gateway>``               YAML: the next version; ``?why= &confirm=SECONDS &restart=1``
``POST /api/v1/configurations/<gateway>/rollback``      an earlier version as a new one; ``?to=VERSION``. Without it
                                                        the last good one; 200 if that was done already
``GET  /api/v1/rollouts``, ``/api/v1/rollouts/<id>``    roll-outs, the newest first: ``?after=&limit=``; one
                                                        with its gateways
``POST /api/v1/rollouts``                               YAML: start one; ``?gateways=PATTERN,…`` or ``?selector=``,
                                                        ``&waves= &soak=SECONDS &away=SECONDS &failures=``, and
                                                        the parameters for one gateway
``POST /api/v1/rollouts/<id>/pause|resume|abort``
``GET  /api/v1/labels``                                 gateways and their labels, a page: ``?selector=&after=&limit=``
``PATCH /api/v1/labels/<gateway>``                      ``{"site": "berlin", "ring": null}``; null removes a label

Changes need ``manage:#`` for the gateways of one's own tenant, or ``manage:$fleet`` for every tenant (``?tenant=``).
Reading needs the right to view.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bridge.desired import CONFIRM_S, DesiredError
from bridge.resources.diff import masked
from bridge.resources.document import SOURCE_BYTES_MAX
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.parse import parse, to_yaml
from cloud.hub.bundles.checking import require_bundles
from cloud.hub.bundles.folder import BundleFolder
from cloud.hub.changes import note_change
from cloud.hub.desired.cursors import cursor_of, key_of, name_of
from cloud.hub.desired.documents import (
    ConfigurationList,
    LabelledGateway,
    LabelList,
    RankedSelectorRow,
    RollBackRow,
)
from cloud.hub.desired.making import (
    ConfigurationTables,
    RollBack,
    RolloutTarget,
    check_resources,
    confirm_fault,
    make_context,
    match_gateways,
    plan_for_gateways,
    plan_for_selector,
    roll_back,
    set_wanted,
    set_wanted_for_selector,
    start_rollout,
)
from cloud.hub.desired.planned import difference_of, plan_document, selector_rows
from cloud.hub.desired.service import DesiredConfigurations
from cloud.hub.desired.shown import gateway_row, member_row, rollout_row, selector_row, version_row
from cloud.hub.json_http import answering, json_response
from cloud.hub.labels import Changes, Labels, LabelSelector, parse_selector, validate_labels
from cloud.hub.limits import LABELS_BYTES_MAX
from cloud.hub.page_position import decode_time_position
from cloud.hub.peers import DEFAULT_TENANT
from cloud.hub.registry.configurations import UnknownGateway, VersionRecord, WantedConfiguration
from cloud.hub.registry.gateway_pages import ConfigurationPage
from cloud.hub.registry.rollouts import RolloutError, Rollouts
from cloud.hub.rollout import RolloutPace, WavesError
from cloud.hub.scope import scope_of
from edge.broker.http.access import HttpAccess
from edge.broker.http.body import read_body
from edge.broker.http.preconditions import Precondition, precondition_of, tag_of
from edge.broker.http.queries import choice_of, limit_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Operation
from edge.configuration.kinds import KINDS

CONFIGURATIONS: Final = "/api/v1/configurations"
SELECTORS: Final = "/api/v1/selectors"
ROLLOUTS: Final = "/api/v1/rollouts"
LABELS: Final = "/api/v1/labels"
PLANS: Final = "/api/v1/plans"
UNCONFIRMED: Final = "unconfirmed"
"""Choice of gateways that do not have their wanted version."""


def _rejected(error: ConfigurationRejected) -> Response:
    errors = [str(each) for each in error.errors]
    return RequestRefused(400, "; ".join(errors), code="configuration-rejected").response(errors=errors)


answered: Final = answering(
    {
        ConfigurationRejected: _rejected,
        DesiredError: 400,
        WavesError: 400,
        UnknownGateway: 404,
        RolloutError: 409,
    }
)


def routes(desired: DesiredConfigurations, access: HttpAccess, bundles: BundleFolder) -> list[HttpRoute]:
    """Return the routes of this module. `bundles`: those that a configuration may name."""
    api = _DesiredApi(desired, access, bundles)
    return [
        HttpRoute(CONFIGURATIONS, answered(api.gateways), methods=PURE),
        HttpRoute(CONFIGURATIONS, answered(api.post_configurations, "configuration.set"), methods=("POST",)),
        HttpRoute(CONFIGURATIONS, answered(api.delete_selector, "configuration.end"), methods=("DELETE",)),
        HttpRoute(PLANS, answered(api.plan), methods=("POST",)),
        HttpRoute(SELECTORS, answered(api.selectors), methods=PURE),
        HttpRoute(CONFIGURATIONS + "/{gateway}", answered(api.gateway), methods=PURE),
        HttpRoute(
            CONFIGURATIONS + "/{gateway}", answered(api.post_configuration, "configuration.set"), methods=("POST",)
        ),
        HttpRoute(
            CONFIGURATIONS + "/{gateway}/rollback",
            answered(api.roll_back, "configuration.roll-back"),
            methods=("POST",),
        ),
        HttpRoute(ROLLOUTS, answered(api.rollouts), methods=PURE),
        HttpRoute(ROLLOUTS, answered(api.begin, "rollout.start"), methods=("POST",)),
        HttpRoute(ROLLOUTS + "/{id}", answered(api.rollout), methods=PURE),
        HttpRoute(ROLLOUTS + "/{id}/{step}", answered(api.step, "rollout.step"), methods=("POST",)),
        HttpRoute(LABELS, answered(api.labels), methods=PURE),
        HttpRoute(LABELS + "/{gateway}", answered(api.label, "gateway.label"), methods=("PATCH",)),
    ]


class _DesiredApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(self, desired: DesiredConfigurations, access: HttpAccess, bundles: BundleFolder) -> None:
        self._desired = desired
        self._access = access
        self._bundles = bundles

    async def gateways(self, request: Request) -> Response:
        scope = await scope_of(self._access, request)
        query, limit = request.query_params, limit_of(request.query_params)
        tenant, after = scope.tenant or query.get("tenant") or None, key_of(query.get("after", ""))
        wants_all = choice_of(query, "state", ("", UNCONFIRMED)) != UNCONFIRMED

        def work(tables: ConfigurationTables) -> ConfigurationPage:
            read = tables.pages.configurations if wants_all else tables.pages.unconfirmed
            return read(tenant, after, limit + 1)

        page = await self._desired.ask(work)
        standing = await self._desired.ask(lambda tables: tables.selectors.all(tenant))
        shown = page.rows[:limit]
        document: ConfigurationList = {
            "gateways": [gateway_row(each) for each in shown],
            "next": cursor_of(shown[-1]) if len(page.rows) > limit else None,
            "total": page.total,
            "configured": page.configured,
            "selectors": [selector_row(each) for each in standing],
        }
        return json_response(document)

    async def gateway(self, request: Request) -> Response:
        tenant, _ = await self._tenant_and_user(request, Operation.VIEW)
        name = request.path_params["gateway"]
        versions = await self._desired.ask(lambda tables: tables.configurations.versions(tenant, name))
        state = await self._desired.ask(lambda tables: tables.configurations.one(tenant, name))
        if state is None:
            raise RequestRefused(404, f"gateway {name} of tenant {tenant} has no configuration from the hub")
        shown = [masked(KINDS, each) for each in versions[0].desired.resources] if versions else []
        row = gateway_row(state)
        rows = [version_row(each) for each in versions]
        document = {**row, "resources": shown, "versions": rows, "difference": _difference(versions, row["version"])}
        answer = json_response(document)
        answer.headers["ETag"] = _version_tag(state.wanted)
        return answer

    async def post_configuration(self, request: Request) -> Response:
        wanted = await self._wanted(request, request.path_params["gateway"])
        now_us, sign, condition = self._desired.now_us(), self._desired.sign, precondition_of(request)

        def work(tables: ConfigurationTables) -> list[VersionRecord]:
            return set_wanted(tables.configurations, [wanted], now_us, sign, _version_check(condition))

        [made] = await self._desired.ask(work)
        note_change(request, tenant=wanted.tenant, after={"version": made.version, "why": wanted.note})
        return json_response(version_row(made), 201)

    async def post_configurations(self, request: Request) -> Response:
        wanted, patterns = await self._wanted(request, ""), _patterns(request)
        if patterns and "selector" in request.query_params:
            raise RequestRefused(400, "name the gateways with gateways=PATTERN,… or selector=SELECTOR")
        return await (self._of_names(request, wanted, patterns) if patterns else self._of_selector(request, wanted))

    async def _of_names(self, request: Request, wanted: WantedConfiguration, patterns: list[str]) -> Response:
        now_us, sign = self._desired.now_us(), self._desired.sign

        def work(tables: ConfigurationTables) -> list[VersionRecord]:
            known = tables.configurations
            each = [wanted._replace(gateway=name) for name in match_gateways(known, wanted.tenant, patterns)]
            return set_wanted(known, each, now_us, sign)

        made = await self._desired.ask(work)
        shown = {"gateways": len(made), "why": wanted.note}
        note_change(request, subject=",".join(patterns), tenant=wanted.tenant, after=shown)
        return json_response({"selector": None, "gateways": [version_row(each) for each in made]}, 201)

    async def _of_selector(self, request: Request, wanted: WantedConfiguration) -> Response:
        wanted = wanted._replace(selector=str(_selector(request)))
        now_us, sign, condition = self._desired.now_us(), self._desired.sign, precondition_of(request)

        def work(tables: ConfigurationTables) -> list[VersionRecord]:
            return set_wanted_for_selector(tables.selectors, wanted, now_us, sign, _selector_check(condition))

        made = await self._desired.ask(work)
        shown = {"gateways": len(made), "why": wanted.note}
        note_change(request, subject=wanted.selector, tenant=wanted.tenant, after=shown)
        return json_response({"selector": wanted.selector, "gateways": [version_row(each) for each in made]}, 201)

    async def selectors(self, request: Request) -> Response:
        if "selector" in request.query_params:
            return await self.selector(request)
        scope = await scope_of(self._access, request)
        tenant = scope.tenant or request.query_params.get("tenant", DEFAULT_TENANT)

        def work(tables: ConfigurationTables) -> list[RankedSelectorRow]:
            return selector_rows(tables.selectors.all(tenant), tables.selectors.labels(tenant))

        return json_response({"selectors": await self._desired.ask(work)})

    async def plan(self, request: Request) -> Response:
        wanted = await self._wanted(request, "")
        now_us, sign = self._desired.now_us(), self._desired.sign
        if patterns := _patterns(request):
            found = await self._desired.ask(lambda tables: plan_for_gateways(tables.configurations, wanted, patterns))
            return json_response({"selector": None, **plan_document(found, wanted.resources)})
        wanted = wanted._replace(selector=str(_selector(request)))
        found = await self._desired.ask(lambda tables: plan_for_selector(tables.selectors, wanted, now_us, sign))
        return json_response({"selector": wanted.selector, **plan_document(found, wanted.resources)})

    async def selector(self, request: Request) -> Response:
        tenant, _ = await self._tenant_and_user(request, Operation.VIEW)
        text = str(_selector(request))
        found = await self._desired.ask(lambda tables: tables.selectors.all(tenant))
        mine = next((each for each in found if each.selector == text), None)
        if mine is None:
            raise RequestRefused(404, f"selector {text} of tenant {tenant} has no configuration")
        shown = [masked(KINDS, each) for each in mine.resources]
        tag = tag_of(mine.decided_at)
        answer = json_response({**selector_row(mine), "resources": shown, "yaml": to_yaml(shown), "etag": tag})
        answer.headers["ETag"] = tag
        return answer

    async def delete_selector(self, request: Request) -> Response:
        tenant, _ = await self._tenant_and_user(request, Operation.MANAGE)
        text, how = str(_selector(request)), make_context(self._desired.now_us(), self._desired.sign)
        note_change(request, subject=text, tenant=tenant)
        check = _selector_check(precondition_of(request))
        made = await self._desired.ask(lambda tables: tables.selectors.delete(tenant, text, how, check))
        note_change(request, after={"gateways": len(made)})
        return json_response({"selector": text, "gateways": [version_row(each) for each in made]})

    async def labels(self, request: Request) -> Response:
        tenant, _ = await self._tenant_and_user(request, Operation.VIEW)
        query, limit = request.query_params, limit_of(request.query_params)
        chosen = _selector(request) if "selector" in query else None
        after = name_of(query.get("after", ""))
        page = await self._desired.ask(lambda tables: tables.pages.labels(tenant, chosen, after, limit + 1))
        rows: list[LabelledGateway] = [
            {"tenant": tenant, "gateway": name, "labels": labels, "etag": tag_of(labels)}
            for name, labels in page.items()
        ]
        following = rows[limit - 1]["gateway"] if len(rows) > limit else None
        document: LabelList = {"gateways": rows[:limit], "next": following}
        return json_response(document)

    async def label(self, request: Request) -> Response:
        tenant, _ = await self._tenant_and_user(request, Operation.MANAGE)
        name, changes = request.path_params["gateway"], _changes(await read_body(request, LABELS_BYTES_MAX, "labels"))
        how, condition = make_context(self._desired.now_us(), self._desired.sign), precondition_of(request)

        def check(present: Labels) -> None:
            condition.check(tag_of(present))

        def work(tables: ConfigurationTables) -> tuple[dict[str, str], dict[str, Any]]:
            before = tables.selectors.labels_of(tenant, name)
            made = tables.selectors.label(tenant, (name,), changes, how, check)
            labels = tables.selectors.labels_of(tenant, name)
            return before, {"gateway": name, "labels": labels, "version": made[0].version if made else None}

        before, answer = await self._desired.ask(work)
        note_change(request, tenant=tenant, before=before, after=answer["labels"])
        changed = json_response(answer)
        changed.headers["ETag"] = tag_of(answer["labels"])
        return changed

    async def roll_back(self, request: Request) -> Response:
        tenant, by = await self._tenant_and_user(request, Operation.MANAGE)
        gateway, query = request.path_params["gateway"], request.query_params
        number = int(_number(query["to"], "to")) if "to" in query else None
        now_us, sign, note = self._desired.now_us(), self._desired.sign, query.get("why", "")
        check = _version_check(precondition_of(request))

        def work(tables: ConfigurationTables) -> list[RollBack]:
            return roll_back(tables.configurations, tenant, [gateway], number, by, note, now_us, sign, check)

        [found] = await self._desired.ask(work)
        shown = {"version": found.record.version, "repeats": found.record.repeats, "why": note or found.why}
        note_change(request, tenant=tenant, after=shown)
        document: RollBackRow = {**version_row(found.record), "why": found.why, "made": found.is_new}
        return json_response(document, 201 if found.is_new else 200)

    async def rollouts(self, request: Request) -> Response:
        scope = await scope_of(self._access, request)
        query = request.query_params
        tenant, limit = scope.tenant or query.get("tenant"), limit_of(query)
        after = decode_time_position(query["after"]) if query.get("after") else None

        def work(tables: ConfigurationTables) -> dict[str, Any]:
            found, total = tables.rollouts.page(tenant, after, limit + 1)
            last = found[limit - 1] if len(found) > limit else None
            rows = [rollout_row(each, tables.rollouts.members(each.id)) for each in found[:limit]]
            following = f"{last.made_at}-{last.id}" if last is not None else None
            return {"rollouts": rows, "next": following, "total": total}

        return json_response(await self._desired.ask(work))

    async def rollout(self, request: Request) -> Response:
        scope = await scope_of(self._access, request)
        return await self._shown(scope.tenant, request.path_params["id"], 200)

    async def begin(self, request: Request) -> Response:
        wanted, query = await self._wanted(request, ""), request.query_params
        patterns = _patterns(request)
        if bool(patterns) is ("selector" in query):
            raise RequestRefused(400, "name the gateways with gateways=PATTERN,… or selector=SELECTOR")
        target = RolloutTarget(patterns, None if patterns else _selector(request))
        seconds = [_number(query.get(name, default), name) for name, default in (("soak", "600"), ("away", "3600"))]
        pace = RolloutPace(seconds[0], seconds[1], int(_number(query.get("failures", "0"), "failures")))
        waves, now_us = query.get("waves", "1,10%,100%"), self._desired.now_us()
        started = await self._desired.ask(lambda tables: start_rollout(tables, wanted, target, waves, pace, now_us))
        note_change(request, subject=started.id, tenant=wanted.tenant, after={"waves": waves, "why": wanted.note})
        return await self._shown(wanted.tenant, started.id, 201)

    async def step(self, request: Request) -> Response:
        scope = await scope_of(self._access, request, Operation.MANAGE)
        identifier, step, now_us = request.path_params["id"], request.path_params["step"], self._desired.now_us()
        found = await self._rollout(scope.tenant, identifier)  # check that it exists within the scope
        note_change(request, tenant=found["tenant"])
        steps: dict[str, Callable[[Rollouts], object]] = {
            "pause": lambda rollouts: rollouts.pause(identifier),
            "resume": lambda rollouts: rollouts.resume(identifier, now_us),
            "abort": lambda rollouts: rollouts.abort(identifier),
        }
        if step not in steps:
            raise RequestRefused(404, f"unknown step; expected one of: {', '.join(steps)}")
        note_change(request, action=f"rollout.{step}", subject=identifier)
        await self._desired.ask(lambda tables: steps[step](tables.rollouts))
        return await self._shown(scope.tenant, identifier, 200)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _shown(self, tenant: str | None, identifier: str, status: int) -> Response:
        return json_response(await self._rollout(tenant, identifier), status)

    async def _rollout(self, tenant: str | None, identifier: str) -> dict[str, Any]:
        """Return a roll-out of this tenant, or of any. Raises `RequestRefused`."""

        def work(tables: ConfigurationTables) -> dict[str, Any] | None:
            found = tables.rollouts.get(identifier)
            if found is None or tenant not in (None, found.tenant):
                return None
            members = tables.rollouts.members(identifier)
            return {**rollout_row(found, members), "members": [member_row(member) for member in members]}

        found = await self._desired.ask(work)
        if found is None:
            raise RequestRefused(404, f"no roll-out {identifier[:64]}", code="rollout-not-found")
        return found

    async def _tenant_and_user(self, request: Request, operation: Operation) -> tuple[str, str]:
        """Return (tenant, user) of a request. Raises `RequestRefused`."""
        scope = await scope_of(self._access, request, operation)
        async with self._access.admitted(request) as (grant, _):
            by = grant.user if grant is not None else ""
        tenant = request.query_params.get("tenant", scope.tenant or DEFAULT_TENANT)
        if not scope.covers(tenant):
            raise RequestRefused(403, f"tenant {tenant} is outside your scope")
        note_change(request, tenant=tenant)
        return tenant, by

    async def _wanted(self, request: Request, gateway: str) -> WantedConfiguration:
        tenant, by = await self._tenant_and_user(request, Operation.MANAGE)
        query = request.query_params
        confirm_s = _number(query.get("confirm", str(int(CONFIRM_S))), "confirm")
        if fault := confirm_fault(confirm_s):
            raise RequestRefused(400, fault)
        resources = parse(KINDS, await read_body(request, SOURCE_BYTES_MAX, "a configuration"), "the request")
        documents = check_resources(resources)
        await asyncio.to_thread(require_bundles, resources, self._bundles)
        return WantedConfiguration(
            tenant, gateway, documents, confirm_s, query.get("restart") == "1", by, query.get("why", "")
        )


def _version_tag(version: int) -> str:
    """Return the entity tag of a gateway's wanted version."""
    return f'"{version}"'


def _version_check(condition: Precondition) -> Callable[[int], None]:
    """Return the check of the wanted version; 0 means that there is none."""
    return lambda version: condition.check(_version_tag(version) if version else None)


def _selector_check(condition: Precondition) -> Callable[[int | None], None]:
    """Return the check of the time of a selector's configuration; None without one."""
    return lambda decided_at: condition.check(None if decided_at is None else tag_of(decided_at))


def _difference(versions: Sequence[VersionRecord], in_force: int) -> str | None:
    """Return the diff from the version in force to the wanted one, the newest; None if the hub does not have both."""
    before = next((each for each in versions if each.version == in_force), None)
    if not versions or (before is None and in_force):
        return None
    return difference_of(before.desired.resources if before is not None else [], versions[0].desired.resources)


def _selector(request: Request) -> LabelSelector:
    """Parse the selector of a request. Raises `LabelError`."""
    return parse_selector(request.query_params.get("selector", ""))


def _patterns(request: Request) -> list[str]:
    """Return the patterns of names in a request."""
    return [each for each in request.query_params.get("gateways", "").split(",") if each]


def _changes(body: bytes) -> Changes:
    """Parse a JSON merge patch (RFC 7396). Raises `RequestRefused`, `LabelError`."""
    try:
        found = msgspec.json.decode(body, type=dict[str, str | None])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestRefused(400, f'expected labels, as in {{"site": "berlin", "ring": null}}: {error}') from None
    validate_labels(found)
    return found


def _number(text: str, name: str) -> float:
    """Parse a number of a query. Raises `RequestRefused`."""
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return float(text)
    raise RequestRefused(400, f"{name} must be a number")
