"""Idempotency keys of commands: a command sent again under its key is the existing one.

A key belongs to its sender: one user of one tenant. It is kept while the command may still arrive, and for a day at
least, so that a retry after a lost response is not a second command. Part of the transactions of `commands`.
"""

from __future__ import annotations

import hashlib

import msgspec
import sqlalchemy as sa

from cloud.hub.limits import COMMAND_KEYS_FORGOTTEN_MAX, COMMAND_KEYS_KEPT_S
from cloud.hub.registry.schema import command_keys


class OtherContent(Exception):
    """The key was used for another command."""


def content_digest(*content: object) -> str:
    """Return the SHA-256 of a command's content, hexadecimal."""
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def find_command(tx: sa.Connection, owner: tuple[str, str], key: str, digest: str, now_us: int) -> str | None:
    """Return the identifier of the command sent under this key by (tenant, user); None without a valid one. Raises
    `OtherContent`."""
    mine = (command_keys.c.tenant == owner[0], command_keys.c.sent_by == owner[1], command_keys.c.key == key)
    query = sa.select(command_keys.c.command, command_keys.c.digest, command_keys.c.kept_until).where(*mine)
    row = tx.execute(query).first()
    if row is None:
        return None
    if row.kept_until <= now_us:
        tx.execute(command_keys.delete().where(*mine))
        return None
    if row.digest != digest:
        raise OtherContent
    return str(row.command)


def store_key(
    tx: sa.Connection, owner: tuple[str, str], key: str, digest: str, command: str, times: tuple[int, int]
) -> None:
    """Store the key of a command. `times`: when it was sent and when it expires, UTC microseconds."""
    sent_at, expires_at = times
    kept_until = max(expires_at, sent_at + int(COMMAND_KEYS_KEPT_S * 1_000_000))
    values = {"tenant": owner[0], "sent_by": owner[1], "key": key, "digest": digest, "command": command}
    tx.execute(command_keys.insert().values(**values, kept_until=kept_until))


def delete_expired(tx: sa.Connection, now_us: int) -> None:
    """Delete some expired keys."""
    old = sa.select(command_keys.c.tenant, command_keys.c.sent_by, command_keys.c.key)
    rows = tx.execute(old.where(command_keys.c.kept_until <= now_us).limit(COMMAND_KEYS_FORGOTTEN_MAX)).all()
    mine = [command_keys.c[name] == sa.bindparam(f"at_{name}") for name in ("tenant", "sent_by", "key")]
    if rows:
        tx.execute(command_keys.delete().where(*mine), [dict(zip(_AT, row, strict=True)) for row in rows])


_AT = ("at_tenant", "at_sent_by", "at_key")
