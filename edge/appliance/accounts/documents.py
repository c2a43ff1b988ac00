"""Documents of the users API. Times are UTC seconds since 1970."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from bridge.hidden import hides

RIGHTS_MAX: Final = 100
"""Rights in one request; `RULES_PER_USER_MAX` bounds those of a user."""
OVERLAP_S_MAX: Final = 30 * 86_400.0
"""Longest time for which an old password stays valid."""

Rights = Annotated[list[str], msgspec.Meta(max_length=RIGHTS_MAX)]
"""Rights as ``send,recv:plant/#``."""


class SecretDocument(msgspec.Struct, kw_only=True):
    """One password of a user, without the password."""

    id: str
    not_before: float | None
    """Begin of its validity; None: at once."""
    not_after: float | None
    """End of its validity; None: no end."""


class UserDocument(msgspec.Struct, kw_only=True):
    """One user: a device or a person."""

    name: str
    kind: str
    """``person`` with a right to view or manage, else ``device``."""
    origin: str
    """``device``: made by hand, and changed here. ``resource``: made by a MessagingUser resource."""
    allow: list[str]
    """Rights."""
    words: list[str]
    """Rights as sentences."""
    secrets: list[SecretDocument]
    connections: int
    """Connections and requests of the user now."""
    last_login_at: float | None
    """Last successful login since the start of the gateway; None without one."""
    etag: str
    """State of its rights, for `If-Match`."""


class UserPage(msgspec.Struct, kw_only=True):
    """Page of users, by name."""

    users: list[UserDocument]
    next: str | None
    """Value of `after` for the next page; None: this is the last one."""
    total: int
    """Users that match the request, on all pages."""


class NewUser(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """User to add. It gets a generated password."""

    name: str
    profile: str | None = None
    """Usual rights: ``sensor``, ``application``, ``viewer`` or ``operator``."""
    allow: Rights = []
    """Further rights."""


class NewPassword(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Wish for a new password."""

    overlap_s: Annotated[float, msgspec.Meta(ge=0, le=OVERLAP_S_MAX)] = 3600.0
    """Seconds for which the old passwords stay valid."""


class NewRights(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Rights to add to those of a user, or to replace them with."""

    allow: Rights


@hides("password", "qr")
class UserCredentials(msgspec.Struct, kw_only=True):
    """A user with its new password, which is shown only in this answer."""

    user: UserDocument
    password: str
    uri: str = ""
    """Address of the gateway for MQTT, with user and password; empty without a listener."""
    qr: str = ""
    """QR code of `uri`, as a data URI of an SVG; empty where the package segno is missing."""
    old_end_at: float | None = None
    """End of the old passwords; None: there were none."""


class RemovedUser(msgspec.Struct, kw_only=True):
    """Name of a user that was removed."""

    name: str


class RightsVerdict(msgspec.Struct, kw_only=True):
    """Answer to the question whether a user may do something."""

    allowed: bool
    why: str
    """The right that allows it, or what is missing."""
    right: str
    """Right that would allow exactly this; empty if none can."""


class UserImport(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Table of users to add and to change."""

    csv: str
    """Rows with the columns `name`, `profile` and `allow`; the first row names them."""
    dry_run: bool = False
    """Check the rows and say what would change; change nothing."""


class ImportFault(msgspec.Struct, kw_only=True):
    """One row that is wrong."""

    line: int
    error: str


class RightsChange(msgspec.Struct, kw_only=True):
    """User that has other rights than its row."""

    name: str
    before: list[str]
    after: list[str]


@hides("password")
class ImportedUser(msgspec.Struct):
    """User that was added, with its password, which is shown only in this answer."""

    name: str
    password: str


class UserImportOutcome(msgspec.Struct, kw_only=True):
    """Changes of a table; in a dry run those that it would make."""

    added: list[str]
    """Users that are added by this step."""
    changed: list[RightsChange]
    """Users that get other rights; their passwords stay."""
    unchanged: int
    """Rows of users that are as they should be."""
    left: int
    """Users that a further request with the same table adds."""
    faults: list[ImportFault]
    """Wrong rows, at most 50. With one of them nothing is changed."""
    faults_total: int
    passwords: list[ImportedUser]
    """Passwords of the users in `added`; empty in a dry run."""
