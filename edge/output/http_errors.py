"""Codes of errors over HTTP, shared by the servers and by commands: by the status of an answer.

Each code has a cause and a next step in `docs/generate/errors.toml`, for `waypost explain CODE` and the reference.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_CODES: Final[dict[int, str]] = {
    400: "invalid-request",
    401: "not-signed-in",
    403: "no-right",
    404: "not-found",
    405: "wrong-method",
    408: "request-incomplete",
    409: "conflict",
    410: "lock-ended",
    412: "changed-meanwhile",
    413: "too-large",
    414: "too-large",
    415: "wrong-content-type",
    429: "too-many-requests",
    500: "server-failed",
    502: "not-delivered",
    503: "not-available",
    504: "outcome-unknown",
    507: "store-full",
}
OTHER: Final = "request-refused"
"""Code of every other status."""


class ErrorWords(NamedTuple):
    """Texts about a code for people."""

    title: str
    next_step: str
    """Used where an error has none of its own."""


_WORDS: Final[dict[str, ErrorWords]] = {
    "invalid-request": ErrorWords(
        "The request is not valid.", "correct what the text names; /api/v1/openapi.json describes requests"
    ),
    "unknown-parameter": ErrorWords(
        "The request has an unknown query parameter.",
        "correct its name; a hub of an earlier version than the client does not know all: update it",
    ),
    "not-signed-in": ErrorWords("No user has signed in.", "sign in: with a user and password, a token, or in the page"),
    "no-right": ErrorWords("The user has no right to this.", "ask an operator for the right, or use another user"),
    "not-found": ErrorWords("This does not exist.", "list what exists, and compare the name"),
    "wrong-method": ErrorWords("The path does not support this method.", "use a method of the header field Allow"),
    "request-incomplete": ErrorWords("The request did not arrive completely.", "send it again"),
    "conflict": ErrorWords("The state of the node does not allow this.", "look at the state, then decide again"),
    "lock-ended": ErrorWords("The message is not locked.", "fetch the message again"),
    "changed-meanwhile": ErrorWords(
        "It was changed since you read it.", "read it again, and make your change to what is there now"
    ),
    "too-large": ErrorWords("The request is too large.", "send less at once"),
    "wrong-content-type": ErrorWords("The content type is not supported.", "send a type that the text names"),
    "too-many-requests": ErrorWords("A limit is reached.", "wait for the seconds of the header field Retry-After"),
    "server-failed": ErrorWords("The node has failed at this.", "see the log of the node, and report it"),
    "not-delivered": ErrorWords("The receiver did not accept it.", "see the reason in the text, and the receiver"),
    "not-available": ErrorWords(
        "The node cannot do this now.", "try again after the seconds of the header field Retry-After"
    ),
    "outcome-unknown": ErrorWords("No answer arrived in time.", "look at the state before you repeat it"),
    "store-full": ErrorWords("The store is full.", "free space, or raise a quota; the gateway's problems say which"),
    OTHER: ErrorWords("The node rejected the request.", "correct what the text names"),
}


def code_of_status(status: int) -> str:
    """Return the code of an error with this status."""
    return _CODES.get(status, OTHER)


def words_of(code: str, status: int) -> ErrorWords:
    """Return the texts of a code; those of the status for a code without own texts."""
    return _WORDS.get(code) or _WORDS[code_of_status(status)]
