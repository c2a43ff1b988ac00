"""HTTP route that adds and changes users from a table.

==============================  ======  ==========================================================================
``POST /api/v1/user-import``    manage  `documents.UserImport`, answered by `documents.UserImportOutcome`
==============================  ======  ==========================================================================

With `dry_run` it only says what would change. A step adds up to `STEP_USERS_MAX` users, and `left` says how many are
left: the same request continues, as users that exist by then change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from edge.appliance.accounts.documents import ImportedUser, UserImport, UserImportOutcome
from edge.appliance.accounts.importing import (
    FAULTS_SHOWN_MAX,
    STEP_USERS_MAX,
    ImportPlan,
    apply_import,
    plan_import,
)
from edge.broker.http.access import HttpAccess
from edge.broker.http.application import needing
from edge.broker.http.audit import note_rehearsal
from edge.broker.http.json_documents import json_answer, read_document
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import HttpRoute
from edge.broker.security.credentials import (
    CredentialFile,
    CredentialsError,
    CredentialSnapshot,
    generated_password,
)
from edge.broker.security.followed_users import FollowedUsers


def import_routes(users: FollowedUsers, access: HttpAccess) -> Sequence[HttpRoute]:
    """Return the route of this module."""

    async def import_users(request: Request) -> Response:
        wanted = await read_document(request, UserImport)
        if wanted.dry_run:
            note_rehearsal(request.scope)
        return json_answer(await _import(users, wanted))

    return [HttpRoute("/api/v1/user-import", needing(access.require_manage)(import_users), methods=("POST",))]


async def _import(users: FollowedUsers, wanted: UserImport) -> UserImportOutcome:
    """Do a step, or only plan it. Raises RequestRefused."""
    done: list[UserImportOutcome] = []

    def change(file: CredentialFile) -> CredentialSnapshot:
        plan = plan_import(wanted.csv, file.load().users)
        names = [each.name for each in plan.added]
        passwords: list[str] = []
        if not (wanted.dry_run or plan.faults):
            names = names[:STEP_USERS_MAX]
            passwords = [generated_password() for _ in names]
            apply_import(file, plan, passwords)
        done.append(_outcome(plan, names, passwords))
        return file.load()

    try:
        await users.change(change)
    except CredentialsError as error:
        raise RequestRefused(400, str(error)) from None
    if done[0].faults and not wanted.dry_run:
        first = done[0].faults[0]
        raise RequestRefused(400, f"line {first.line}: {first.error}; nothing was changed")
    return done[0]


def _outcome(plan: ImportPlan, names: Sequence[str], passwords: Sequence[str]) -> UserImportOutcome:
    return UserImportOutcome(
        added=list(names),
        changed=plan.changes,
        unchanged=plan.unchanged,
        left=len(plan.added) - len(names),
        faults=plan.faults[:FAULTS_SHOWN_MAX],
        faults_total=len(plan.faults),
        passwords=[ImportedUser(*each) for each in zip(names, passwords, strict=False)],
    )
