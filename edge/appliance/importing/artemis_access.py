"""Users, roles and security settings of Artemis as users with rights.

Of the security settings that match an address, only the most specific one counts there. Rights here are added up. So
a permission is left out where a more specific setting takes it away from a part of its addresses.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bridge.hidden import hides
from bridge.topic_filter import filter_fault
from edge.appliance.importing.artemis_addresses import ANY_LEVEL, WildcardSyntax, by_precision
from edge.appliance.importing.artemis_file import PropertyLine, XmlElement, read_properties
from edge.appliance.importing.report import ImportNote, ImportOutcome
from edge.appliance.importing.rules import rules_of
from edge.broker.model.topics import covers, overlaps
from edge.broker.security.limits import USERNAME_CHARACTERS_MAX
from edge.broker.security.password_hashes import parse_hash

USERS_FILE: Final = "artemis-users.properties"
ROLES_FILE: Final = "artemis-roles.properties"
OPERATIONS: Final = {"send": "send", "consume": "recv"}
"""Operations by the type of a permission."""
IMPORTED, CHANGED = ImportOutcome.IMPORTED, ImportOutcome.CHANGED
LEFT_OUT, NOT_NEEDED = ImportOutcome.LEFT_OUT, ImportOutcome.NOT_NEEDED

_PERMISSIONS: Final[Mapping[str, tuple[ImportOutcome, str]]] = {
    **dict.fromkeys(
        (
            "createAddress", "deleteAddress", "createDurableQueue", "deleteDurableQueue", "createNonDurableQueue",
            "deleteNonDurableQueue",
        ),
        (NOT_NEEDED, "who may send or receive may use an address; subscriptions are the subscriber's own"),
    ),
    "browse": (NOT_NEEDED, "who may receive may browse"),
    "manage": (LEFT_OUT, "give its users an authorization with the operation manage"),
    "view": (LEFT_OUT, "give its users an authorization with the operation view"),
    "edit": (LEFT_OUT, "give its users an authorization with the operation manage"),
}  # fmt: skip
"""Results for the types of permissions that are not on messages."""


@hides("password")
class ArtemisUser(NamedTuple):
    """User of a properties file."""

    line: PropertyLine
    password: str
    """Password, or its hash in the form ENC(…)."""
    hashed: bool


class RoleRight(NamedTuple):
    """Operation that a role has on addresses."""

    role: str
    operation: str
    addresses: tuple[str, ...]


def import_users(
    core: XmlElement, folder: Path, syntax: WildcardSyntax, names: Sequence[str]
) -> tuple[list[dict[str, Any]], list[ImportNote]]:
    """Return the `spec` of each user, and the results. `names`: declared addresses. Raises ImportFileError."""
    users, notes = _read_users(folder / USERS_FILE)
    roles = _read_roles(folder / ROLES_FILE)
    rights, more = _SecurityImport(core, syntax, names).run()
    specs = [
        _user_spec(user, [each for each in rights if user.line.name in roles.get(each.role, ())]) for user in users
    ]
    return specs, [*notes, *more]


# --- inside -----------------------------------------------------------------------------------------------------------


def _read_users(path: Path) -> tuple[list[ArtemisUser], list[ImportNote]]:
    users: dict[str, ArtemisUser] = {}
    notes: list[ImportNote] = []
    for line in read_properties(path) if path.exists() else ():
        hashed = line.value.startswith("ENC(")
        words = ""
        if not line.name or len(line.name) > USERNAME_CHARACTERS_MAX or not line.name.isprintable():
            words = f"a user name has 1 to {USERNAME_CHARACTERS_MAX} printable characters"
        elif hashed:
            try:
                parse_hash(line.value)
            except ValueError as why:
                words = str(why)
        elif not line.value:
            words = "it has no password"
        if words:
            notes.append(ImportNote(line.place, f"user {line.name}", LEFT_OUT, words))
            continue
        users[line.name] = ArtemisUser(line, line.value, hashed)
        kept = "with its password, for MQTT, HTTP and SASL PLAIN" if hashed else "with its password"
        notes.append(ImportNote(line.place, f"user {line.name}", IMPORTED, kept))
    return list(users.values()), notes


def _read_roles(path: Path) -> dict[str, frozenset[str]]:
    """Return the users of each role."""
    lines = read_properties(path) if path.exists() else ()
    return {line.name: frozenset(each.strip() for each in line.value.split(",")) for line in lines}


class _SecurityImport:
    """Import of the security settings."""

    def __init__(self, core: XmlElement, syntax: WildcardSyntax, names: Sequence[str]) -> None:
        self._syntax = syntax
        self._names = names
        found = [each for group in core.of("security-settings") for each in group.of("security-setting")]
        self._settings = by_precision(found, syntax)
        self._notes: list[ImportNote] = []
        self._rights: list[RoleRight] = []

    def run(self) -> tuple[list[RoleRight], list[ImportNote]]:
        """Return the rights of roles, and the result for each permission."""
        for i, setting in enumerate(self._settings):
            self._setting(setting, self._settings[i + 1 :])
        return self._rights, self._notes

    def _setting(self, setting: XmlElement, later: Sequence[XmlElement]) -> None:
        """Take the permissions of a setting. `later`: settings that may be more specific."""
        match, levels = setting.attributes.get("match", ""), self._levels(setting)
        if fault := filter_fault(levels):
            self._notes.append(setting.note(LEFT_OUT, f"as levels it is {levels}: {fault}"))
            return
        own = self._own_names(levels, later)
        whole = [match] if not self._syntax.is_pattern(match) or levels == match else [levels, *own]
        if levels == ANY_LEVEL:  # as a filter it would match names with dots, too
            whole = own
        if levels != match and self._syntax.is_pattern(match):
            self._notes.append(setting.note(CHANGED, f"for {', '.join(whole) or 'no address'}: levels are by `/` here"))
        for permission in setting.of("permission"):
            kind = permission.attributes.get("type", "")
            if kind not in OPERATIONS:
                self._notes.append(permission.note(*_PERMISSIONS.get(kind, (LEFT_OUT, "unknown")), f"at {match}"))
                continue
            for role in _roles_of(permission):
                taken = [each for each in later if not _allows(each, kind, role) and self._meet(each, match)]
                words = f"security-setting {taken[0].attributes.get('match')} takes a part of it away" if taken else ""
                self._notes.append(permission.note(LEFT_OUT if taken else IMPORTED, words, f"{role} at {match}"))
                if kept := own if taken else whole:
                    self._rights.append(RoleRight(role, OPERATIONS[kind], tuple(kept)))

    def _own_names(self, levels: str, later: Sequence[XmlElement]) -> list[str]:
        """Return the declared addresses for which this setting counts, and no later one."""
        syntax = self._syntax
        fitting = [name for name in self._names if covers(levels, syntax.levels(name))]
        return [name for name in fitting if not any(covers(self._levels(each), syntax.levels(name)) for each in later)]

    def _meet(self, setting: XmlElement, match: str) -> bool:
        return overlaps(self._levels(setting), self._syntax.levels(match))

    def _levels(self, setting: XmlElement) -> str:
        return self._syntax.levels(setting.attributes.get("match", ""))


def _roles_of(permission: XmlElement) -> list[str]:
    return [role for each in permission.attributes.get("roles", "").split(",") if (role := each.strip())]


def _allows(setting: XmlElement, kind: str, role: str) -> bool:
    return any(each.attributes.get("type") == kind and role in _roles_of(each) for each in setting.of("permission"))


def _user_spec(user: ArtemisUser, rights: Sequence[RoleRight]) -> dict[str, Any]:
    encoded = base64.b64encode(user.password.encode()).decode()
    secret = {"passwordHash": user.password} if user.hashed else {"password": encoded}
    return {
        "username": user.line.name,
        "authentication": {"type": "password", **secret},
        "authorization": list(_authorization(rights)),
    }


def _authorization(rights: Sequence[RoleRight]) -> Iterator[dict[str, Any]]:
    """Yield rules: those with the same operation together."""
    for operation in OPERATIONS.values():
        found = (address for each in rights if each.operation == operation for address in each.addresses)
        yield from rules_of(found, [operation])
