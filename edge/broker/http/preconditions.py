"""Conditional changes: `ETag` and `If-Match` (RFC 9110 section 13), so that two people do not overwrite each other."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request

from edge.broker.http.refusal import RequestRefused

T = TypeVar("T")
Check = Callable[[T], None]
"""Gets the present state of what a request changes, within the transaction of the change; raises to prevent it."""

_DIGEST_BYTES: Final = 12
_TAGS_MAX: Final = 16
"""Tags that If-Match may list: a client has one, or few in a proxy."""
_TAG: Final = re.compile(r'\s*(?:W/)?("[\x21\x23-\x7e]{0,64}")\s*(?:,|$)')
_ANY: Final = "*"


def tag_of(state: Any) -> str:
    """Return the entity tag of a state: equal states have the same one."""
    digest = hashlib.blake2b(msgspec.json.encode(state, order="deterministic"), digest_size=_DIGEST_BYTES)
    return f'"{digest.hexdigest()}"'


class Precondition(NamedTuple):
    """Condition of a request. The state of something that does not exist is None."""

    match: frozenset[str] | None
    """Tags of which the present one has to be one; ``*``: any; None: no condition."""
    new: bool
    """It must not exist (``If-None-Match: *``)."""

    def check(self, tag: str | None) -> None:
        """Raise RequestRefused unless the present tag meets the condition; None: it does not exist."""
        if self.new and tag is not None:
            raise RequestRefused(
                412, "it exists already", {"ETag": tag}, next_step="read it, and send its ETag in If-Match to change it"
            )
        if self.match is None or (tag is not None and (tag in self.match or _ANY in self.match)):
            return
        if tag is None:
            raise RequestRefused(412, "it does not exist any more")
        raise RequestRefused(412, "somebody else has changed it since you read it", {"ETag": tag})


def precondition_of(request: Request) -> Precondition:
    """Return the condition of a request. Raises RequestRefused for a malformed one."""
    wanted, new = request.headers.get("if-match"), request.headers.get("if-none-match")
    if new is not None and new.strip() != _ANY:
        raise RequestRefused(400, "of a change If-None-Match is *, which means that it must not exist")
    return Precondition(None if wanted is None else _tags(wanted), new is not None)


def _tags(text: str) -> frozenset[str]:
    if text.strip() == _ANY:
        return frozenset((_ANY,))
    found, place = list[str](), 0
    while place < len(text) or not found:
        match = _TAG.match(text, place)
        if match is None or len(found) == _TAGS_MAX:
            raise RequestRefused(
                400,
                f"If-Match is not a list of at most {_TAGS_MAX} entity tags",
                next_step="send the ETag of the answer",
            )
        found.append(match[1])
        place = match.end()
    return frozenset(found)
