"""Users from a table in CSV (RFC 4180): checked row by row, then added and changed.

The first row names the columns: `name`, and one or both of `profile` and `allow` (rights, separated by spaces). A
semicolon separates columns where the first row has no comma, as spreadsheets of some countries write it. A row without
profile and rights leaves a user that exists as it is.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from edge.appliance.accounts.changes import rules_of_profile
from edge.appliance.accounts.documents import ImportFault, RightsChange
from edge.appliance.accounts.profiles import PROFILES
from edge.broker.model.authorization import AccessRule
from edge.broker.security.credentials import (
    BY_RESOURCE,
    CredentialFile,
    CredentialsError,
    CredentialUser,
    new_user,
    with_rules,
    with_secret,
)
from edge.broker.security.rights import format_rights

COLUMNS: Final = ("name", "profile", "allow")
ROWS_MAX: Final = 1_000
"""Rows of one table: some 40 bytes each fit the size of a request."""
FAULTS_SHOWN_MAX: Final = 50
"""Wrong rows in an answer: whoever corrects these sends the table again."""
STEP_USERS_MAX: Final = 20
"""Users that one request adds: hashing a password takes up to 0.3 s on a Raspberry Pi, and a browser waits 15 s."""


class ImportRow(NamedTuple):
    """One row of the table."""

    line: int
    name: str
    profile: str | None
    allow: Sequence[str]


class ImportPlan(NamedTuple):
    """Changes that a table would make."""

    added: list[CredentialUser]
    """New users, without a password."""
    changed: list[CredentialUser]
    changes: list[RightsChange]
    unchanged: int
    faults: list[ImportFault]


def plan_import(text: str, users: Mapping[str, CredentialUser]) -> ImportPlan:
    """Return what a table would change. `users`: those that exist, by name."""
    plan = ImportPlan([], [], [], 0, [])
    seen: dict[str, int] = {}
    unchanged = 0
    try:
        for row in _rows(text):
            try:
                unchanged += not _plan_row(row, users, seen, plan)
            except (ValueError, CredentialsError) as error:
                plan.faults.append(ImportFault(line=row.line, error=str(error)))
    except _TableError as error:
        plan.faults.append(ImportFault(line=error.line, error=str(error)))
    return plan._replace(unchanged=unchanged)


def apply_import(file: CredentialFile, plan: ImportPlan, passwords: Sequence[str]) -> None:
    """Change the rights of users, and add as many users as there are passwords. Takes some 50 ms for each.

    Raises CredentialsError; then nothing has changed.
    """
    now = time.time()
    added = [with_secret(user, password, at_s=now) for user, password in zip(plan.added, passwords, strict=False)]
    file.put([*plan.changed, *added])


class _TableError(Exception):
    """The text is not such a table."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def _rows(text: str) -> Iterator[ImportRow]:
    """Yield the rows of a table. Raises _TableError."""
    head = text.removeprefix("\ufeff").lstrip("\r\n")
    first = head.partition("\n")[0]
    reader = csv.reader(io.StringIO(head), delimiter=";" if ";" in first and "," not in first else ",", strict=True)
    try:
        names = [each.strip().lower() for each in next(reader, [])]
        if "name" not in names or len(names) < 2 or not set(names) <= set(COLUMNS) or len(set(names)) < len(names):
            raise _TableError(1, f"the first row names the columns: name, and of {', '.join(COLUMNS[1:])} at least one")
        count = 0
        for cells in reader:
            if not any(each.strip() for each in cells):
                continue
            count += 1
            if count > ROWS_MAX:
                raise _TableError(reader.line_num, f"more than {ROWS_MAX} rows: divide the table")
            if len(cells) > len(names):
                raise _TableError(reader.line_num, f"it has {len(cells)} columns, and the first row {len(names)}")
            found = dict(zip(names, map(str.strip, cells), strict=False))
            allow = found.get("allow", "").split()
            yield ImportRow(reader.line_num, found.get("name", ""), found.get("profile") or None, allow)
    except csv.Error as error:
        raise _TableError(reader.line_num, f"not CSV: {error}") from None


def _plan_row(row: ImportRow, users: Mapping[str, CredentialUser], seen: dict[str, int], plan: ImportPlan) -> bool:
    """Add a row to the plan; return False if it changes nothing. Raises ValueError, CredentialsError."""
    if row.name in seen:
        raise ValueError(f"{row.name[:100]} is in line {seen[row.name]} too")
    seen[row.name] = row.line
    if row.profile is not None and row.profile not in PROFILES:
        raise ValueError(f"profile is one of {', '.join(PROFILES)}, not {row.profile[:40]!r}")
    rules: tuple[AccessRule, ...] = rules_of_profile(row.profile, row.allow)
    known = users.get(row.name)
    if known is None:
        if not rules:
            raise ValueError("it has neither a profile nor rights")
        plan.added.append(new_user(row.name, rules))
        return True
    before, after = format_rights(known.rules), format_rights(rules)
    if not rules or set(before) == set(after):
        return False
    if known.origin == BY_RESOURCE:
        raise ValueError(f"user {row.name[:100]} comes from a MessagingUser resource: change that")
    plan.changed.append(with_rules(known, rules))
    plan.changes.append(RightsChange(name=row.name, before=before, after=after))
    return True
