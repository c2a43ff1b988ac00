"""HTTP routes of users, for the console and scripts. A change is in force when it is answered.

=============================================  ======  ============================================================
``GET /api/v1/users``                          view    `documents.UserPage`: ``?q=&after=&limit=``
``POST /api/v1/users``                         manage  add one: `documents.NewUser`, answered by `UserCredentials`
``GET /api/v1/users/{name}``                   view    `documents.UserDocument`
``DELETE /api/v1/users/{name}``                manage  remove one; its connections are closed
``POST /api/v1/users/{name}/password``         manage  new password: `documents.NewPassword`
``GET /api/v1/users/{name}/rights``            view    test: ``?operation=send&address=plant/x``, `RightsVerdict`
``POST /api/v1/users/{name}/rights``           manage  add rights: `documents.NewRights`
``PUT /api/v1/users/{name}/rights``            manage  replace the rights
=============================================  ======  ============================================================

Passwords are generated, and in the answer only once. Errors are problem details.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from bridge.resources.endpoint import ListenEndpoint, authority
from edge.appliance.accounts.changes import rules_of_profile
from edge.appliance.accounts.documents import (
    NewPassword,
    NewRights,
    NewUser,
    RemovedUser,
    SecretDocument,
    UserCredentials,
    UserDocument,
    UserPage,
)
from edge.appliance.accounts.profiles import PROFILES
from edge.appliance.accounts.rights_in_words import judge_rights, rights_in_words
from edge.broker.http.access import HttpAccess
from edge.broker.http.application import needing
from edge.broker.http.json_documents import json_answer, read_document
from edge.broker.http.preconditions import Precondition, precondition_of, tag_of
from edge.broker.http.queries import choice_of, limit_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.credentials import (
    CredentialFile,
    CredentialsError,
    CredentialSnapshot,
    CredentialsUnavailable,
    CredentialUser,
    UserChanged,
    generated_password,
)
from edge.broker.security.followed_users import FollowedUsers
from edge.broker.security.rights import format_rights, parse_rights
from edge.broker.security.user_changes import (
    UserByResource,
    UserExists,
    UserNotFound,
    add_rights,
    add_user,
    remove_user,
    replace_rights,
    rotate_secret,
)

_OF_PEOPLE: Final = {Operation.VIEW, Operation.MANAGE}
_LISTENERS: Final = (("mqtts", "mqtts"), ("mqtt", "mqtt"))
"""Listeners for devices and the schemes of their addresses, the best first."""

Listening = Callable[[], Mapping[str, ListenEndpoint] | None]
"""Returns the listeners of the gateway by name."""


def user_routes(
    users: FollowedUsers, gate: Authenticator, access: HttpAccess, listening: Listening
) -> Sequence[HttpRoute]:
    """Return the routes of this module. `gate` knows the users in force."""
    api = _Users(users, gate, listening)
    view, manage = needing(access.require_view), needing(access.require_manage)
    return [
        HttpRoute("/api/v1/users", view(api.page), methods=PURE),
        HttpRoute("/api/v1/users", manage(api.add), methods=("POST",)),
        HttpRoute("/api/v1/users/{name:path}/password", manage(api.rotate), methods=("POST",)),
        HttpRoute("/api/v1/users/{name:path}/rights", view(api.judge), methods=PURE),
        HttpRoute("/api/v1/users/{name:path}/rights", manage(api.allow), methods=("POST",)),
        HttpRoute("/api/v1/users/{name:path}/rights", manage(api.replace), methods=("PUT",)),
        HttpRoute("/api/v1/users/{name:path}", view(api.show), methods=PURE),
        HttpRoute("/api/v1/users/{name:path}", manage(api.remove), methods=("DELETE",)),
    ]


class _Users:
    def __init__(self, users: FollowedUsers, gate: Authenticator, listening: Listening) -> None:
        self._users = users
        self._gate = gate
        self._listening = listening

    async def page(self, request: Request) -> Response:
        query, limit = request.query_params, limit_of(request.query_params)
        text, after = query.get("q", ""), query.get("after")
        names = sorted(name for name in self._gate.users if text in name)
        start = 0 if after is None else bisect_right(names, after)
        shown = names[start : start + limit]
        more = len(names) > start + limit
        documents = [self._document(name) for name in shown]
        return json_answer(UserPage(users=documents, next=shown[-1] if more else None, total=len(names)))

    async def show(self, request: Request) -> Response:
        document = self._document(_name_of(request))
        answer = json_answer(document)
        answer.headers["ETag"] = document.etag
        return answer

    async def judge(self, request: Request) -> Response:
        name, query = _name_of(request), request.query_params
        operation = Operation(choice_of(query, "operation", ("send", "recv")))
        address = query.get("address", "")
        if not address:
            raise RequestRefused(400, "address is missing: the name of an address, or for recv also a filter")
        rules = self._known(name).rules
        return json_answer(judge_rights(rules, name, query.get("client", name), operation, address))

    async def add(self, request: Request) -> Response:
        wanted = await read_document(request, NewUser)
        if wanted.profile is not None and wanted.profile not in PROFILES:
            raise RequestRefused(400, f"profile is one of {', '.join(PROFILES)}, not {wanted.profile[:40]!r}")
        rules, password = _rules_of(lambda: rules_of_profile(wanted.profile, wanted.allow)), generated_password()
        await self._change(lambda file: add_user(file, wanted.name, rules, password))
        return self._credentials(request, wanted.name, password)

    async def rotate(self, request: Request) -> Response:
        wanted, name, password = await read_document(request, NewPassword), _name_of(request), generated_password()
        had, ends = bool(self._known(name).secrets), time.time() + wanted.overlap_s
        condition = precondition_of(request)

        def change(file: CredentialFile) -> CredentialUser:
            _check(condition, file, name)
            return rotate_secret(file, name, password, ends_at_s=ends)

        await self._change(change)
        return self._credentials(request, name, password, ends if had else None)

    async def allow(self, request: Request) -> Response:
        return await self._change_rights(request, add_rights)

    async def replace(self, request: Request) -> Response:
        return await self._change_rights(request, replace_rights)

    async def remove(self, request: Request) -> Response:
        name, condition = _name_of(request), precondition_of(request)

        def change(file: CredentialFile) -> None:
            _check(condition, file, name)
            remove_user(file, name)

        await self._change(change)
        return json_answer(RemovedUser(name=name))

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _change_rights(
        self, request: Request, change: Callable[[CredentialFile, str, Sequence[AccessRule]], CredentialUser]
    ) -> Response:
        wanted, name = await read_document(request, NewRights), _name_of(request)
        rules, condition = _rules_of(lambda: parse_rights(wanted.allow)), precondition_of(request)

        def changed(file: CredentialFile) -> CredentialUser:
            _check(condition, file, name)
            return change(file, name, rules)

        await self._change(changed)
        return json_answer(self._document(name))

    async def _change(self, change: Callable[[CredentialFile], object]) -> None:
        """Change the credential file on a thread, and apply it. Raises RequestRefused."""

        def changed(file: CredentialFile) -> CredentialSnapshot:
            change(file)
            return file.load()

        try:
            await self._users.change(changed)
        except UserNotFound as why:
            raise RequestRefused(404, str(why), code="user-not-found") from None
        except UserExists as why:
            raise RequestRefused(
                409, str(why), code="user-exists", next_step="give it another password or other rights instead"
            ) from None
        except UserByResource as why:
            raise RequestRefused(
                409, str(why), code="user-of-configuration", next_step="change that with `waypost apply`"
            ) from None
        except UserChanged as why:
            raise RequestRefused(409, str(why)) from None
        except CredentialsUnavailable as why:
            raise RequestRefused(503, str(why)) from None
        except CredentialsError as why:
            raise RequestRefused(400, str(why)) from None

    def _known(self, name: str) -> CredentialUser:
        user = self._gate.users.get(name)
        if user is None:
            raise RequestRefused(404, f"user {name[:100]} not found", code="user-not-found")
        return user

    def _document(self, name: str) -> UserDocument:
        user = self._known(name)
        operations = {operation for rule in user.rules for operation in rule.operations}
        return UserDocument(
            name=name,
            kind="person" if operations & _OF_PEOPLE else "device",
            origin=user.origin,
            allow=format_rights(user.rules),
            words=rights_in_words(user.rules, name),
            secrets=[
                SecretDocument(id=each.id, not_before=each.not_before or None, not_after=each.not_after)
                for each in user.secrets
            ],
            connections=self._gate.connections_of(name),
            last_login_at=self._gate.last_logins.get(name),
            etag=_tag_of(user),
        )

    def _credentials(self, request: Request, name: str, password: str, old_end_at: float | None = None) -> Response:
        uri = self._uri(request.url.hostname or "", name, password)
        made = UserCredentials(
            user=self._document(name), password=password, uri=uri, qr=_qr(uri) if uri else "", old_end_at=old_end_at
        )
        return json_answer(made)

    def _uri(self, host: str, name: str, password: str) -> str:
        """Return the address of the gateway for a device; empty without a listener for MQTT."""
        listeners = self._listening() or {}
        for listener, scheme in _LISTENERS:
            if listener in listeners:
                login = f"{quote(name, safe='')}:{quote(password, safe='')}"
                return f"{scheme}://{login}@{authority(host, listeners[listener].port)}"
        return ""


def _rules_of(parse: Callable[[], tuple[AccessRule, ...]]) -> tuple[AccessRule, ...]:
    try:
        return parse()
    except ValueError as why:
        raise RequestRefused(400, str(why)) from None


def _name_of(request: Request) -> str:
    return str(request.path_params["name"])


def _qr(text: str) -> str:
    """Return a QR code (ISO/IEC 18004) as a data URI of an SVG; empty where the package is missing."""
    try:
        import segno  # noqa: PLC0415 - rarely needed
    except ImportError:
        return ""
    return str(segno.make_qr(text, error="m").svg_data_uri(scale=4, dark="#000", light="#fff"))


def _tag_of(user: CredentialUser) -> str:
    return tag_of((user.name, user.origin, format_rights(user.rules)))


def _check(condition: Precondition, file: CredentialFile, name: str) -> None:
    """Raise RequestRefused unless the user in the file meets the condition."""
    user = file.load().users.get(name)
    if user is not None:
        condition.check(_tag_of(user))
