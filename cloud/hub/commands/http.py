"""Commands over HTTP.

``POST /api/v1/commands``       send a command (`documents.CommandDocument`): 202 when it is on disk;
                                ``?wait=SECONDS`` answers when it is completed, or after that time. With a header
                                ``Idempotency-Key`` a repeated request is the same command; another command with that
                                key is refused (422); so is an online command while its gateway is not connected (409)
                                With ``selector`` instead of ``gateway`` one command for each gateway with these labels;
                                ``?expected=N`` refuses it (409) if they are not N
``POST /api/v1/commands/rehearsal`` the same body: who would get it now, when it connects, or never; sends nothing
``GET  /api/v1/commands``       the newest commands, ``?gateway= &device= &state= &after= &limit=``
``GET  /api/v1/commands/<id>``  one command; ``?wait=SECONDS`` answers when it is completed, or after that time
``DELETE /api/v1/commands/<id>`` cancel a command; 409 if its gateway may have it, or it is completed

Sending needs the right ``send:command/<gateway>/<device>``, or ``manage:$fleet`` for every tenant (``?tenant=``).
Reading needs the right to view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bridge.command import OnlineReason
from cloud.hub.changes import note_change, note_error
from cloud.hub.commands.documents import (
    ONLINE,
    CommandDocument,
    InvalidCommand,
    check_command,
    command_document,
    outlook_document,
    outlook_for,
)
from cloud.hub.commands.limits import DOCUMENT_BYTES_MAX, PAGE_MAX, SELECTED_COMMANDS_MAX, WAIT_S_MAX
from cloud.hub.commands.service import CommandsBusy, Draft, HubCommands
from cloud.hub.json_http import answering, message_response
from cloud.hub.labels import LabelSelector, parse_selector
from cloud.hub.peers import DEFAULT_TENANT, InvalidPeer, PeerKind, parse_user
from cloud.hub.registry.commands import CancelTooLate, CommandFilter, CommandOutlook, CommandRefused, CommandState
from cloud.hub.registry.commands import CommandRefusal as Why
from cloud.hub.scope import FLEET, scope_of
from cloud.lake.faults import RegistryError
from edge.broker.http.access import HttpAccess
from edge.broker.http.body import read_body
from edge.broker.http.message_headers import message_headers
from edge.broker.http.queries import choice_of, limit_of, number_of
from edge.broker.http.refusal import PROBLEM, RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Grant, Operation

PATH: Final = "/api/v1/commands"
IDEMPOTENCY_KEY: Final = "idempotency-key"
_STATUS: Final = {Why.NO_GATEWAY: 404, Why.FULL: 429, Why.TENANT_FULL: 429, Why.OTHER_CONTENT: 422}


def _response_to_refused(refused: CommandRefused) -> int | Response:
    """Return the status, or the response, to a command that is refused."""
    if refused.why is not Why.NOT_CONNECTED:
        return _STATUS[refused.why]
    step = "send it when the gateway is connected, or with delivery stored"
    return RequestRefused(409, str(refused), code=OnlineReason.GATEWAY_NOT_CONNECTED.value, next_step=step).response()


answered: Final = answering({InvalidCommand: 400, CommandRefused: _response_to_refused, CommandsBusy: 503})
_STATES: Final = [state.value for state in CommandState]


def address_of(gateway: str, device: str) -> str:
    """Return the address that rights to send commands refer to."""
    return f"command/{gateway}/{device}"


def routes(commands: HubCommands, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of this module."""
    api = _CommandApi(commands, access)
    return [
        HttpRoute(PATH, answered(api.send, "command.send"), methods=("POST",)),
        HttpRoute(PATH, answered(api.page), methods=PURE),
        HttpRoute(PATH + "/rehearsal", answered(api.rehearse), methods=("POST",)),
        HttpRoute(PATH + "/{id}", answered(api.one), methods=PURE),
        HttpRoute(PATH + "/{id}", answered(api.cancel, "command.cancel"), methods=("DELETE",)),
    ]


class _CommandApi:
    def __init__(self, commands: HubCommands, access: HttpAccess) -> None:
        self._commands = commands
        self._access = access

    async def rehearse(self, request: Request) -> Response:
        """Show who would get a command, and send none. Raises `RequestRefused`, `CommandsBusy`, `RegistryError`."""
        async with self._access.admitted(request) as (grant, _):
            document = await _document(request)
            tenant = _scope_of_sender(grant, request, document)
            by = grant.user if grant is not None else ""
            _checked(document, tenant, by, document.gateway or _ANY)
            found, total = await self._commands.rehearse(tenant, _chosen(document))
            found = [outlook_for(document, _allowed(grant, each, document.device)) for each in found]
        rows = [outlook_document(each) for each in found]
        counts = Counter(row["when"] for row in rows)
        return message_response(
            {
                "total": total,
                "now": counts["now"],
                "later": counts["when it connects"],
                "never": counts["never"],
                "shown": len(rows),
                "gateways": rows,
            }
        )

    async def _send_selected(self, request: Request, grant: Grant | None, document: CommandDocument) -> Response:
        """Send a command to every gateway that a selector chooses."""
        tenant, by = _scope_of_sender(grant, request, document), grant.user if grant is not None else ""
        found, total = await self._commands.rehearse(tenant, _chosen(document))
        note_change(request, subject=document.selector, tenant=tenant, after={**_shown(document), "gateways": total})
        if total > SELECTED_COMMANDS_MAX:
            raise RequestRefused(
                409, f"{total} gateways are more than {SELECTED_COMMANDS_MAX}: use a narrower selector"
            )
        expected = request.query_params.get("expected")
        if expected is not None and expected != str(total):
            raise RequestRefused(409, f"{total} gateways have these labels now, not {expected[:9]}: look again")
        sent, refused = [], []
        for each in found:
            allowed = _allowed(grant, each, document.device)
            if allowed.why_not:
                refused.append({"gateway": each.gateway, "why": allowed.why_not})
                continue
            try:
                made = await self._commands.send(_checked(document, tenant, by, each.gateway)._replace(follows=False))
            except CommandRefused as why:
                refused.append({"gateway": each.gateway, "why": str(why)})
            else:
                sent.append(command_document(made))
        return message_response({"total": total, "commands": sent, "refused": refused}, 202)

    async def send(self, request: Request) -> Response:
        """Send a command. Raises `RequestRefused`, `CommandRefused`, `CommandsBusy`, `RegistryError`."""
        async with self._access.admitted(request) as (grant, _):
            document, seconds = await _document(request), _wait_of(request)
            if document.selector and seconds:
                raise RequestRefused(400, "wait is for a command to one gateway")
            if document.selector:
                return await self._send_selected(request, grant, document)
            tenant = _tenant_of(grant, request, address_of(document.gateway, document.device))
            note_change(request, subject=document.gateway, tenant=tenant, after=_shown(document))
            key = request.headers.get(IDEMPOTENCY_KEY)
            made = check_command(document, tenant, grant.user if grant is not None else "", key=key)
            sent = await self._commands.send(made)
        with suppress(CommandsBusy, RegistryError):  # the command is on disk: its sender gets its id in any case
            sent = (await self._commands.wait(sent.id, seconds) if seconds else None) or sent
        return message_response(command_document(sent), 202)

    async def cancel(self, request: Request) -> Response:
        """Cancel a command. Raises `RequestRefused`, `CommandsBusy`, `RegistryError`."""
        scope, identifier = await scope_of(self._access, request), request.path_params["id"]
        found = await self._commands.get(identifier)
        if found is None or not scope.covers(found.tenant):
            raise RequestRefused(404, f"no command {identifier[:64]}", code="command-not-found")
        async with self._access.admitted(request) as (grant, _):
            address = address_of(found.sent_to or found.gateway, found.device)
            if found.tenant != _tenant_of(grant, request, address, found.tenant):
                raise RequestRefused(403, "the command belongs to another tenant")
            note_change(request, subject=f"{found.gateway} {identifier}", tenant=found.tenant)
            try:
                cancelled = await self._commands.cancel(identifier, grant.user if grant is not None else "")
            except CancelTooLate as late:
                note_error(request, str(late))
                refused = RequestRefused(409, str(late), message_headers(PROBLEM), code="command-too-late")
                return refused.response(command=command_document(late.command))
        return message_response(command_document(cancelled or found))

    async def page(self, request: Request) -> Response:
        """List commands. Raises `RequestRefused`, `CommandsBusy`, `RegistryError`."""
        scope = await scope_of(self._access, request)
        query = request.query_params
        choice_of(query, "state", ["", *_STATES])
        limit, before = limit_of(query, most=PAGE_MAX), number_of(query, "after")
        tenant = scope.tenant or query.get("tenant")
        before = None if before is None else min(before, (1 << 63) - 1)
        gateway, device, state = (query.get(name) or None for name in ("gateway", "device", "state"))
        wanted = CommandFilter(tenant, gateway, device, state, before)
        found = await self._commands.page(wanted, limit + 1)
        following = found[limit - 1].number if len(found) > limit else None
        rows = [command_document(each) for each in found[:limit]]
        return message_response({"commands": rows, "next": following})

    async def one(self, request: Request) -> Response:
        """Show one command. Raises `RequestRefused`, `CommandsBusy`, `RegistryError`."""
        scope, identifier = await scope_of(self._access, request), request.path_params["id"]
        found = await self._commands.describe(identifier)
        if found is None or not scope.covers(found.tenant):
            raise RequestRefused(404, f"no command {identifier[:64]}", code="command-not-found")
        if seconds := _wait_of(request):
            found = await self._commands.wait(identifier, seconds) or found
        return message_response(command_document(found))


_ANY: Final = "any"
"""Name that stands for a gateway of a selector when the rest of a command is checked."""


def _shown(document: CommandDocument) -> dict[str, Any]:
    """Return what the audit shows of a command."""
    online = {"delivery": document.delivery} if document.delivery == ONLINE else {}
    return {"device": document.device, "name": document.name, **online}


def _checked(document: CommandDocument, tenant: str, by: str, gateway: str) -> Draft:
    """Return the command for one gateway. Raises `InvalidCommand`."""
    return check_command(msgspec.structs.replace(document, gateway=gateway, selector=""), tenant, by)


def _chosen(document: CommandDocument) -> Collection[str] | LabelSelector:
    """Return the gateways of a command. Raises `RequestRefused`, `LabelError`."""
    if bool(document.selector) is bool(document.gateway):
        raise RequestRefused(400, "name a gateway, or a selector of gateways")
    return parse_selector(document.selector) if document.selector else (document.gateway,)


def _scope_of_sender(grant: Grant | None, request: Request, document: CommandDocument) -> str:
    """Return the tenant for a command by labels; each gateway is checked on its own. Raises `RequestRefused`."""
    if document.gateway:
        return _tenant_of(grant, request, address_of(document.gateway, document.device))
    wanted = request.query_params.get("tenant")
    if grant is None or (grant.may(Operation.MANAGE, FLEET) and wanted is not None):
        return wanted or DEFAULT_TENANT
    return _own_tenant(grant, wanted)


def _allowed(grant: Grant | None, outlook: CommandOutlook, device: str) -> CommandOutlook:
    """Return an outlook that says why the user may not send to the gateway."""
    address = address_of(outlook.gateway, device)
    if grant is None or outlook.why_not or grant.may(Operation.MANAGE, FLEET) or grant.may_send(address):
        return outlook
    return outlook._replace(why_not=f"{grant.user} may not send to {address}")


def _tenant_of(grant: Grant | None, request: Request, address: str, owner: str | None = None) -> str:
    """Return the tenant that the user may send this to; `owner` if that is known. Raises `RequestRefused`."""
    wanted = owner or request.query_params.get("tenant")
    if grant is None:
        return wanted or DEFAULT_TENANT
    if grant.may(Operation.MANAGE, FLEET):
        if wanted is not None:
            return wanted
    elif not grant.may_send(address):
        words = f"{grant.user} may not send to {address}"
        raise RequestRefused(403, f"{words}: it needs the right send:{address} (waypost hub user add --allow)")
    return _own_tenant(grant, wanted)


def _own_tenant(grant: Grant, wanted: str | None) -> str:
    """Return the tenant of a user; the default one for an operator, who has none. Raises `RequestRefused`."""
    try:
        own = parse_user(grant.user, PeerKind.PERSON).tenant
    except InvalidPeer as why:
        if grant.may(Operation.MANAGE, FLEET):
            return DEFAULT_TENANT
        raise RequestRefused(403, str(why)) from None
    if wanted not in (None, own):
        raise RequestRefused(403, f"{grant.user} may only send to gateways of its own tenant")
    return own


async def _document(request: Request) -> CommandDocument:
    """Read the command in the body of a request. Raises `RequestRefused`."""
    body = await read_body(request, DOCUMENT_BYTES_MAX, "a command")
    try:
        return msgspec.json.decode(body, type=CommandDocument)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefused(400, f"invalid command: {error}") from None


def _wait_of(request: Request) -> int:
    """Return how many seconds a request waits for the outcome. Raises `RequestRefused`."""
    return _number(request.query_params.get("wait", "0"), 0, int(WAIT_S_MAX), "wait")


def _number(text: str, least: int, most: int, name: str) -> int:
    """Parse a number of a query. Raises `RequestRefused`."""
    if text.isascii() and text.isdigit() and least <= int(text[:19]) <= most:
        return int(text[:19])
    raise RequestRefused(400, f"{name} must be a number from {least} to {most}")
