"""Errors of an object store, with the next step."""

from __future__ import annotations

from typing import Final

from cloud.place.limits import ERROR_TEXT_MAX

_OF_A_STORE: Final = ("S3", "status code", "169.254.")
_HINTS: Final = (
    ("NoSuchBucket", "the bucket does not exist: create it, or correct its name"),
    ("InvalidAccessKeyId", "the store does not know the access key: check AWS_ACCESS_KEY_ID or the credentials file"),
    ("SignatureDoesNotMatch", "the secret key does not match the access key: check AWS_SECRET_ACCESS_KEY"),
    ("RequestTimeTooSkewed", "this machine's clock differs from the store's by more than 15 minutes: set it"),
    ("ExpiredToken", "the credentials have expired: renew them"),
    ("AccessDenied", "the credentials lack rights: they need GetObject, PutObject, DeleteObject, ListBucket"),
    ("403 Forbidden", "the credentials lack rights: they need GetObject, PutObject, DeleteObject, ListBucket"),
    (
        "credential",
        "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SHARED_CREDENTIALS_FILE",
    ),
    ("169.254.", "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SHARED_CREDENTIALS_FILE"),
    ("error sending request", "the store does not answer"),
)
"""Known parts of error texts of stores and clients, with the next step."""


class ObjectStoreError(OSError):
    """The object store failed; the message says why and what to do, on one line."""


def explain_error(text: str) -> str:
    """Return an error text on one line, with the next step if it is known."""
    message = " ".join(text.partition("Debug source")[0].split())[:ERROR_TEXT_MAX]
    of_store = any(mark in text for mark in _OF_A_STORE)
    hint = next((hint for mark, hint in _HINTS if mark in text), None) if of_store else None
    return message if hint is None else f"{hint} ({message})"
