"""Enrolment tokens for operators: made in numbers, shown once, as text and as QR code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import msgspec
import segno

from bridge.enrolment import EnrolmentToken
from cloud.hub.enrolment.limits import TOKEN_EXPIRES_S, TOKEN_EXPIRES_S_MAX, TOKENS_A_REQUEST_MAX
from cloud.hub.registry.enrolments import TokenRecord
from cloud.hub.registry.labels import decode, encode

QUIET_MODULES: Final = 4
"""Light modules around a code (ISO/IEC 18004)."""


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Request for new tokens."""

    count: Annotated[int, msgspec.Meta(ge=1, le=TOKENS_A_REQUEST_MAX)] = 1
    """Number of tokens, each for any new name of a gateway."""
    gateways: Annotated[list[str], msgspec.Meta(max_length=TOKENS_A_REQUEST_MAX)] = []
    """Names of gateways, which may exist: one token for each, instead of `count`."""
    labels: dict[str, str] = {}
    """Labels for the gateways."""
    expires_s: Annotated[float, msgspec.Meta(ge=60, le=TOKEN_EXPIRES_S_MAX)] = TOKEN_EXPIRES_S
    """Validity in seconds."""
    tenant: str = ""
    """Empty: the user's own."""


class TokenDocument(msgspec.Struct, kw_only=True):
    """Token without its secret. Times are milliseconds since 1970, UTC."""

    id: str
    tenant: str
    gateway: str
    """Gateway that used it, or the only one that may; empty: any new name."""
    state: str
    """``open``, ``spent``, ``revoked`` or ``expired``."""
    labels: dict[str, str]
    created_at: int
    expires_at: int
    spent_at: int | None
    revoked_at: int | None


class NewToken(TokenDocument, kw_only=True):
    """New token, shown once."""

    token: str
    """Text for the gateway."""
    qr_path: str
    """The text as QR code: path of an SVG."""
    qr_size: int
    """Width and height of the code in modules, with its margin."""


class TokenPage(msgspec.Struct, kw_only=True):
    """Page of tokens, the newest first."""

    tokens: list[TokenDocument]
    next: str | None
    """Value of `after` for the next page; null: this is the last one."""
    total: int


class NewTokens(msgspec.Struct, kw_only=True):
    """New tokens, and the address at which gateways enrol."""

    hub: str
    """URL of the hub for gateways."""
    tokens: list[NewToken]


def make_tokens(
    wanted: TokenRequest, tenant: str, authority: bytes, now_us: int
) -> list[tuple[EnrolmentToken, TokenRecord]]:
    """Make tokens. `authority`: fingerprint of the hub's."""
    ends_us, labels = now_us + int(wanted.expires_s * 1e6), encode(wanted.labels)
    gateways: Sequence[str | None] = wanted.gateways or [None] * wanted.count
    made = []
    for gateway in gateways:
        token = EnrolmentToken.make(authority)
        made.append((token, TokenRecord(token.id, token.digest, tenant, gateway, now_us, ends_us, labels=labels)))
    return made


def state_of(token: TokenRecord, now_us: int) -> str:
    """Return the state of a token: ``open``, ``spent``, ``revoked`` or ``expired``."""
    if token.spent_at is not None:
        return "spent"
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at <= now_us else "open"


def token_fields(record: TokenRecord, now_us: int) -> dict[str, object]:
    """Return the fields of a token's document."""
    return {
        "id": record.id,
        "tenant": record.tenant,
        "gateway": record.gateway or "",
        "state": state_of(record, now_us),
        "labels": decode(record.labels),
        "created_at": record.created_at // 1_000,
        "expires_at": record.expires_at // 1_000,
        "spent_at": None if record.spent_at is None else record.spent_at // 1_000,
        "revoked_at": None if record.revoked_at is None else record.revoked_at // 1_000,
    }


def token_document(record: TokenRecord, now_us: int) -> TokenDocument:
    """Make the document of a token."""
    return msgspec.convert(token_fields(record, now_us), TokenDocument)


def new_token(token: EnrolmentToken, record: TokenRecord) -> NewToken:
    """Make the document of a new token."""
    path, size = qr_code(token.text)
    fields = token_fields(record, record.created_at)
    return msgspec.convert({**fields, "token": token.text, "qr_path": path, "qr_size": size}, NewToken)


def qr_code(text: str) -> tuple[str, int]:
    """Return a text as QR code: path of an SVG, and its size. Level M can be read with up to 15 % of it damaged."""
    code = segno.make_qr(text, error="m")
    size, _ = code.symbol_size(border=QUIET_MODULES)
    return "".join(_runs(code.matrix)), int(size)


def _runs(matrix: Sequence[Sequence[int]]) -> Iterator[str]:
    """Yield a rectangle for each run of dark modules in a row."""
    for row, modules in enumerate(matrix):
        start = None
        for column, dark in enumerate((*modules, 0)):
            if dark and start is None:
                start = column
            elif not dark and start is not None:
                yield f"M{start + QUIET_MODULES} {row + QUIET_MODULES}h{column - start}v1h-{column - start}z"
                start = None
