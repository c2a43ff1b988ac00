"""What an object store that refuses says, in words that name the next step."""

from __future__ import annotations

from typing import Final

from cloud.place.limits import SAID_MAX

_OF_A_STORE: Final = ("S3", "status code", "169.254.")
_HINTS: Final = (
    ("NoSuchBucket", "there is no such bucket: make it, or mend the name"),
    ("InvalidAccessKeyId", "the store does not know the access key: see AWS_ACCESS_KEY_ID or the credentials file"),
    ("SignatureDoesNotMatch", "the secret key does not fit the access key"),
    ("RequestTimeTooSkewed", "this machine's clock differs from the store's by more than 15 minutes: set it"),
    ("ExpiredToken", "the credentials have expired"),
    ("AccessDenied", "these credentials may not do this: they need GetObject, PutObject, DeleteObject, ListBucket"),
    ("403 Forbidden", "these credentials may not do this: they need GetObject, PutObject, DeleteObject, ListBucket"),
    (
        "credential",
        "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file",
    ),
    ("169.254.", "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file"),
    ("error sending request", "the store does not answer"),
)
"""What of a store's or client's words says which."""


class StoreError(OSError):
    """The object store does not do what was asked; the message says why and what to do, on one line."""


def explained(text: str) -> str:
    """What a client says, on one line, and what to do where that is known."""
    said = " ".join(text.partition("Debug source")[0].split())[:SAID_MAX]
    of_store = any(mark in text for mark in _OF_A_STORE)
    hint = next((hint for mark, hint in _HINTS if mark in text), None) if of_store else None
    return said if hint is None else f"{hint} ({said})"
