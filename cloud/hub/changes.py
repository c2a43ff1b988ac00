"""Changes of a request, noted by its endpoint for the audit (`cloud.hub.audit_trail`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

CHANGE: Final = "waypost.change"
"""Key of the noted change in the ASGI scope of a request."""


@dataclass(slots=True)
class NotedChange:
    """Change that a request wants."""

    action: str
    """Noun and verb, as in ``token.create``."""
    subject: str | None = None
    """Name of what is changed; None: as in the path."""
    tenant: str | None = None
    """Tenant of it, empty for the hub itself; None: the user's."""
    before: Any = None
    after: Any = None
    error: str = ""


NOT_STORED: Final = "waypost.not-stored"
"""Key in the ASGI scope of a request: its answer has a secret, and must not be stored."""


def note_secret(request: Request) -> None:
    """Note that the answer to a request has a secret, which is shown once."""
    request.scope[NOT_STORED] = True


def note_change(
    request: Request,
    *,
    action: str | None = None,
    subject: str | None = None,
    tenant: str | None = None,
    before: Any = None,
    after: Any = None,
) -> None:
    """Add to the noted change of a request. Values are JSON documents without secrets."""
    noted: NotedChange | None = request.scope.get(CHANGE)
    if noted is None:
        return
    if action is not None:
        noted.action = action
    if subject is not None:
        noted.subject = subject
    if tenant is not None:
        noted.tenant = tenant
    if before is not None:
        noted.before = before
    if after is not None:
        noted.after = after


def note_recorded(request: Request) -> None:
    """Note that the change was written to the audit already, in one transaction with it."""
    request.scope.pop(CHANGE, None)


def note_error(request: Request, why: str) -> None:
    """Note why a change was refused, or failed."""
    noted: NotedChange | None = request.scope.get(CHANGE)
    if noted is not None:
        noted.error = why
