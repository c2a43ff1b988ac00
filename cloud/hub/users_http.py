"""Users of a hub over HTTP: what `waypost hub user` does, and new passwords, rights and sessions.

``GET  /api/v1/users``                    users by name: ``?q=&tenant=&after=&limit=``
``POST /api/v1/users``                    `NewHubUser`: add one, answered by `HubCredentials` with its password
``GET  /api/v1/users/<name>``             one user
``PUT  /api/v1/users/<name>/rights``      `HubRights`: other rights instead of its own; its connections close
``POST /api/v1/users/<name>/password``    `NewHubPassword`: a new password, answered by `HubCredentials`
``DELETE /api/v1/users/<name>/sessions``  end its sessions in browsers
``DELETE /api/v1/users/<name>``           remove it; its connections and sessions end

A user with ``manage:#`` manages the users of its own tenant, and neither gives nor takes over rights that it lacks.
``manage:$fleet`` manages every user. A change is in effect when it is answered. Where an issuer has the users, the hub
has none to change.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bridge.hidden import hides
from cloud.hub.changes import note_change, note_secret
from cloud.hub.json_http import answering, json_response
from cloud.hub.limits import PASSWORD_OVERLAP_S_MAX, TENANT_USERS_MAX
from cloud.hub.peers import PeerKind, parse_user, tenant_of_user
from cloud.hub.roles import UserRole, role_of, with_role
from cloud.hub.scope import FLEET, Scope, scope_of
from cloud.hub.shared_users import SharedUsers
from cloud.hub.tenants import TenantRemoved
from edge.broker.http.access import HttpAccess
from edge.broker.http.json_documents import read_document
from edge.broker.http.preconditions import precondition_of, tag_of
from edge.broker.http.queries import limit_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import AccessRule, Grant, Operation, allowing_rule
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.credentials import (
    CredentialsError,
    CredentialSnapshot,
    CredentialStore,
    CredentialsUnavailable,
    CredentialUser,
    UserChanged,
    generated_password,
)
from edge.broker.security.followed_users import FollowedUsers
from edge.broker.security.limits import RULES_PER_USER_MAX
from edge.broker.security.rights import format_rights, parse_rights
from edge.broker.security.user_changes import (
    UserByResource,
    UserExists,
    UserNotFound,
    add_user,
    changeable_user,
    remove_user,
    replace_rights,
    rotate_secret,
)
from edge.output.text import line

log = logging.getLogger(__name__)

USERS: Final = "/api/v1/users"
answered: Final = answering(
    {
        UserNotFound: 404,
        UserExists: 409,
        UserByResource: 409,
        UserChanged: 409,
        CredentialsUnavailable: 503,
        CredentialsError: 400,
    }
)
_TEXT_CHARACTERS_MAX: Final = 100

Rights = Annotated[list[str], msgspec.Meta(max_length=RULES_PER_USER_MAX)]
"""Rights as ``recv:plant/#``."""
Change = Callable[[CredentialStore], object]
"""Changes the users."""


class HubUserDocument(msgspec.Struct, kw_only=True):
    """User of a hub: a person, or an application."""

    name: str
    tenant: str
    """Empty for a name without a valid tenant, which cannot sign in."""
    allow: list[str]
    """Rights."""
    role: UserRole | None
    """Highest role with rights that it all has; null: it has rights of its own choice."""
    passwords: int
    """Passwords that are valid: two while an old one has not ended."""
    connections: int
    """Connections, sessions and requests of the user now."""
    sessions: int
    """Sessions in browsers."""
    last_login_at: int | None
    """Last successful login since the hub started."""
    manageable: bool
    """The user who asks may change this one."""
    etag: str
    """State of its rights, for `If-Match`."""


class HubUserPage(msgspec.Struct, kw_only=True):
    """Page of users, by name."""

    users: list[HubUserDocument]
    next: str | None
    """Value of `after` for the next page; null on the last one."""
    total: int
    """Users that match, on all pages."""
    kept_by: str
    """``hub``: they are users of this hub. ``issuer``: an issuer of tokens has them. ``none``: authentication is
    off."""


class NewHubUser(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """User to add. It gets a generated password."""

    name: str
    """``NAME@TENANT``."""
    role: UserRole | None = None
    """Role that it gets."""
    allow: Rights = []
    """Rights that it gets in addition to those of the role."""


class HubRights(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Rights of a user."""

    role: UserRole | None = None
    """Role that it gets."""
    allow: Rights | None = None
    """All its rights, in addition to those of the role."""


class NewHubPassword(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Wish for a new password."""

    overlap_s: Annotated[float, msgspec.Meta(ge=0, le=PASSWORD_OVERLAP_S_MAX)] = 0.0
    """Seconds for which the old passwords stay valid; 0: its sessions end at once."""


@hides("password")
class HubCredentials(msgspec.Struct, kw_only=True):
    """A user with its new password, which is shown only in this answer."""

    user: HubUserDocument
    password: str


def user_routes(
    users: FollowedUsers | SharedUsers | None,
    gate: Authenticator,
    access: HttpAccess,
    is_removed: Callable[[str], bool] = lambda _tenant: False,
) -> list[HttpRoute]:
    """Return the routes of this module. `users`: None where the hub has no users of its own; `is_removed` returns
    whether a tenant was removed."""
    api = _HubUsersApi(users, gate, access, is_removed)
    return [
        HttpRoute(USERS, answered(api.page), methods=PURE),
        HttpRoute(USERS, answered(api.add, "user.create"), methods=("POST",)),
        HttpRoute(USERS + "/{name}/rights", answered(api.change_rights, "user.rights"), methods=("PUT",)),
        HttpRoute(USERS + "/{name}/password", answered(api.change_password, "user.password"), methods=("POST",)),
        HttpRoute(USERS + "/{name}/sessions", answered(api.end_sessions, "user.sign-out"), methods=("DELETE",)),
        HttpRoute(USERS + "/{name}", answered(api.one), methods=PURE),
        HttpRoute(USERS + "/{name}", answered(api.remove, "user.remove"), methods=("DELETE",)),
    ]


class _HubUsersApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(
        self,
        users: FollowedUsers | SharedUsers | None,
        gate: Authenticator,
        access: HttpAccess,
        is_removed: Callable[[str], bool],
    ) -> None:
        self._users = users
        self._gate = gate
        self._access = access
        self._is_removed = is_removed

    async def page(self, request: Request) -> Response:
        """List the users of one's own tenant, or with the right on the whole fleet all of them."""
        scope, query = await scope_of(self._access, request), request.query_params
        limit = limit_of(query)
        tenant, text = scope.tenant or query.get("tenant", ""), query.get("q", "")[:_TEXT_CHARACTERS_MAX].lower()
        names = sorted(
            name for name in self._gate.users if text in name.lower() and tenant in ("", tenant_of_user(name))
        )
        start = bisect_right(names, query["after"]) if query.get("after") else 0
        shown, more = names[start : start + limit], len(names) > start + limit
        async with self._access.admitted(request) as (grant, _):
            rows = [self._document(self._gate.users[name], grant) for name in shown]
        following = shown[-1] if more else None
        return json_response(HubUserPage(users=rows, next=following, total=len(names), kept_by=self._kept_by))

    async def one(self, request: Request) -> Response:
        name = await self._name(request, Operation.VIEW)
        async with self._access.admitted(request) as (grant, _):
            document = self._document(self._gate.users[name], grant)
        answer = json_response(document)
        answer.headers["ETag"] = document.etag
        return answer

    async def add(self, request: Request) -> Response:
        scope = await scope_of(self._access, request, Operation.MANAGE)
        wanted = await read_document(request, NewHubUser, optional=True)
        rules, password = _rules(with_role(wanted.role, wanted.allow)), generated_password()
        tenant = parse_user(wanted.name, PeerKind.PERSON).tenant
        if not scope.covers(tenant):
            raise RequestRefused(403, f"tenant {tenant} is outside your scope")
        note_change(request, subject=wanted.name, tenant=tenant, after={"allow": format_rights(rules)})
        if self._is_removed(tenant):
            raise TenantRemoved(tenant)
        async with self._access.admitted(request) as (grant, _):
            _require_rights(grant, wanted.name, rules)

            def change(file: CredentialStore) -> None:
                if sum(tenant_of_user(each) == tenant for each in file.load().users) >= TENANT_USERS_MAX:
                    raise RequestRefused(
                        409, f"tenant {tenant} has {TENANT_USERS_MAX} users, the most that one may have: remove some"
                    )
                add_user(file, wanted.name, rules, password)

            await self._change(change)
            note_secret(request)
            return json_response(self._credentials(wanted.name, password, grant), 201)

    async def change_rights(self, request: Request) -> Response:
        name = await self._name(request)
        wanted = await read_document(request, HubRights, optional=True)
        if wanted.role is None and wanted.allow is None:
            raise RequestRefused(400, "give role, allow, or both")
        rules, condition = _rules(with_role(wanted.role, wanted.allow or ())), precondition_of(request)
        note_change(request, after={"allow": format_rights(rules)})
        async with self._access.admitted(request) as (grant, _):
            _require_rights(grant, name, rules)

            def change(file: CredentialStore) -> None:
                before = _changeable(file, name, grant)
                condition.check(_tag_of(before))
                note_change(request, before={"allow": format_rights(before.rules)})
                replace_rights(file, name, rules)

            await self._change(change)
            return json_response(self._document(self._gate.users[name], grant))

    async def change_password(self, request: Request) -> Response:
        name = await self._name(request)
        wanted = await read_document(request, NewHubPassword, optional=True)
        password, condition = generated_password(), precondition_of(request)
        note_change(request, after={"overlap_s": wanted.overlap_s})
        async with self._access.admitted(request) as (grant, _):

            def change(file: CredentialStore) -> None:
                condition.check(_tag_of(_changeable(file, name, grant)))
                rotate_secret(file, name, password, ends_at_s=time.time() + wanted.overlap_s)

            await self._change(change)
            if not wanted.overlap_s:
                await self._end_sessions_of_old_secret(name)
            note_secret(request)
            return json_response(self._credentials(name, password, grant))

    async def end_sessions(self, request: Request) -> Response:
        name = await self._name(request)
        async with self._access.admitted(request) as (grant, _):
            _require_rights(grant, name, self._gate.users[name].rules)
        ended = await self._access.end_sessions_of(name)
        note_change(request, after={"sessions": ended})
        return json_response({"name": name, "sessions": ended})

    async def remove(self, request: Request) -> Response:
        name, condition = await self._name(request), precondition_of(request)
        async with self._access.admitted(request) as (grant, _):

            def change(file: CredentialStore) -> None:
                before = _changeable(file, name, grant)
                condition.check(_tag_of(before))
                note_change(request, before={"allow": format_rights(before.rules)})
                remove_user(file, name)

            await self._change(change)
        await self._end_sessions_of_old_secret(name)
        return json_response({"name": name})

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _kept_by(self) -> str:
        if self._users is not None:
            return "hub"
        return "issuer" if self._gate.tokens else "none"

    async def _name(self, request: Request, operation: Operation = Operation.MANAGE) -> str:
        """Return the user in the path, of a tenant that the request may manage or view. Raises `RequestRefused`."""
        scope, name = await scope_of(self._access, request, operation), request.path_params["name"]
        if name not in self._gate.users or not _covers(scope, name):
            raise RequestRefused(404, f"no user {name[:_TEXT_CHARACTERS_MAX]}", code="user-not-found")
        note_change(request, tenant=tenant_of_user(name))
        return str(name)

    async def _end_sessions_of_old_secret(self, name: str) -> None:
        """End the sessions of a user after its secret has ended. The change is done, so it is answered also if the
        sessions cannot be removed now: none is restored with an old secret."""
        try:
            await self._access.end_sessions_of(name)
        except RequestRefused as refused:
            log.warning("sessions of %s stay in the registry until they are over: %s", line(name), line(str(refused)))

    async def _change(self, change: Change) -> None:
        """Change the users on a thread, and apply it. Raises what `answered` translates."""
        if self._users is None:
            where = "the issuer of tokens has the users" if self._gate.tokens else "authentication is off"
            raise RequestRefused(409, f"this hub has no users of its own: {where}")

        def changed(file: CredentialStore) -> CredentialSnapshot:
            change(file)
            return file.load()

        await self._users.change(changed)

    def _credentials(self, name: str, password: str, grant: Grant | None) -> HubCredentials:
        return HubCredentials(user=self._document(self._gate.users[name], grant), password=password)

    def _document(self, user: CredentialUser, grant: Grant | None) -> HubUserDocument:
        last, at_s = self._gate.last_logins.get(user.name), time.time()
        return HubUserDocument(
            name=user.name,
            tenant=tenant_of_user(user.name),
            allow=format_rights(user.rules),
            role=role_of(user.rules),
            passwords=sum(each.valid(at_s) for each in user.secrets),
            connections=self._gate.connections_of(user.name),
            sessions=sum(each.user == user.name for each in self._access.sessions),
            last_login_at=None if last is None else int(last * 1_000),
            manageable=_may_manage(grant) and _missing_right(grant, user.name, user.rules) is None,
            etag=_tag_of(user),
        )


def _tag_of(user: CredentialUser) -> str:
    return tag_of((user.name, format_rights(user.rules)))


def _covers(scope: Scope, name: str) -> bool:
    return scope.tenant is None or scope.tenant == tenant_of_user(name)


def _may_manage(grant: Grant | None) -> bool:
    return grant is None or grant.may_manage or grant.may(Operation.MANAGE, FLEET)


def _missing_right(grant: Grant | None, name: str, rules: Sequence[AccessRule]) -> str | None:
    """Return a right of the named user among these that the grant lacks; None if it has them all, or may manage the
    whole fleet. ``%u`` means a different name for each of two users, so it is replaced; a client chooses its ``%c``."""
    if grant is None or grant.may(Operation.MANAGE, FLEET):
        return None
    for rule in rules:
        for pattern in rule.addresses:
            for operation in sorted(rule.operations, key=lambda each: each.value):
                meant = pattern.replace("%u", name).replace("%c", "+")
                if allowing_rule(grant.rules, operation, meant, grant.user, grant.client) is None:
                    return f"{operation.value}:{pattern}"
    return None


def _require_rights(grant: Grant | None, name: str, rules: Sequence[AccessRule]) -> None:
    """Check that the grant has these rights of the named user: it can neither give nor take over more. Raises
    `RequestRefused`."""
    missing = _missing_right(grant, name, rules)
    if missing is not None:
        raise RequestRefused(403, f"you have no right {missing}: ask an operator with manage:{FLEET}")


def _changeable(file: CredentialStore, name: str, grant: Grant | None) -> CredentialUser:
    """Return a user that this one may change. Raises `RequestRefused`, `UserNotFound`."""
    user = changeable_user(file, name)
    _require_rights(grant, name, user.rules)
    return user


def _rules(texts: Sequence[str]) -> tuple[AccessRule, ...]:
    """Parse rights. Raises `RequestRefused`."""
    try:
        return parse_rights(texts)
    except ValueError as why:
        raise RequestRefused(400, str(why)) from None
