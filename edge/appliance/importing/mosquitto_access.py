"""Users and rights: the password file and the access control list of Mosquitto (mosquitto.conf(5), `acl_file`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bridge.topic_filter import filter_fault
from edge.appliance.importing.mosquitto_file import Setting, read_lines
from edge.appliance.importing.report import ImportNote, ImportOutcome
from edge.appliance.importing.rules import rules_of
from edge.broker.model.authorization import EVERYTHING
from edge.broker.model.topics import overlaps
from edge.broker.security.limits import USERNAME_CHARACTERS_MAX
from edge.broker.security.password_hashes import parse_hash
from edge.configuration.resource_names import ResourceNames

OPERATIONS: Final = {"read": ("recv",), "write": ("send",), "readwrite": ("send", "recv")}
"""Operations by the kind of access."""
DENY: Final = "deny"
NO_DENIALS: Final = "there are only permissions: grant filters without it"


class MosquittoUser(NamedTuple):
    """User of the password file."""

    name: str
    hashed: str | None = None
    """Hash of the password (`edge.broker.security.password_hashes`); None for a client with a certificate."""


class AclLine(NamedTuple):
    """Line of an access control list that grants or denies."""

    setting: Setting
    user: str | None
    """Name of the user; None for the clients without one."""
    pattern: bool
    """True for a pattern, which is for every user."""
    access: str
    topic: str


class AccessList(NamedTuple):
    """Lines of an access control list, with the result for the others."""

    lines: list[AclLine]
    notes: list[ImportNote]


EMPTY: Final = AccessList([], [])


def read_passwords(path: Path) -> tuple[list[MosquittoUser], list[ImportNote]]:
    """Read a password file; the last line of a name counts. Raises ImportFileError."""
    users: dict[str, MosquittoUser] = {}
    notes: list[ImportNote] = []
    for number, text in enumerate(read_lines(path), 1):
        if not text.strip() or text.startswith("#"):
            continue
        name, _, hashed = text.rstrip().partition(":")
        setting = Setting(f"{path.name}:{number}", f"user {name}", hashed)
        try:
            parse_hash(hashed)
        except ValueError as why:
            notes.append(setting.note(ImportOutcome.LEFT_OUT, f"{why}; mosquitto_passwd -U makes one"))
            continue
        if not name or len(name) > USERNAME_CHARACTERS_MAX or not name.isprintable():
            words = f"a user name has 1 to {USERNAME_CHARACTERS_MAX} printable characters"
            notes.append(setting.note(ImportOutcome.LEFT_OUT, words))
            continue
        users[name] = MosquittoUser(name, hashed)
        notes.append(setting.note(ImportOutcome.IMPORTED, "with its password, for MQTT, HTTP and SASL PLAIN"))
    return list(users.values()), notes


def read_access(path: Path) -> AccessList:
    """Read an access control list. Raises ImportFileError."""
    lines: list[AclLine] = []
    notes: list[ImportNote] = []
    user: str | None = None
    for number, text in enumerate(read_lines(path), 1):
        if not text.strip() or text.startswith("#"):
            continue
        kind, _, rest = text.strip().partition(" ")
        setting = Setting(f"{path.name}:{number}", f"{kind} {rest}", rest)
        if kind == "user":
            user = rest.strip()
            continue
        access, space, topic = rest.strip().partition(" ")
        if not space or access not in (*OPERATIONS, DENY):
            access, topic = "readwrite", rest.strip()
        topic = topic.strip()
        fault = filter_fault(topic) if kind in {"topic", "pattern"} else "it is neither user, topic nor pattern"
        if kind == "topic" and ("%u" in topic or "%c" in topic):
            fault = "%u and %c stand for names here; in a topic of Mosquitto they do not"
        if fault:
            notes.append(setting.note(ImportOutcome.LEFT_OUT, fault))
        else:
            lines.append(AclLine(setting, user, kind == "pattern", access, topic))
    return AccessList(lines, notes)


def user_documents(
    users: Sequence[MosquittoUser], access: AccessList | None, space: str, version: str
) -> tuple[list[dict[str, Any]], list[ImportNote]]:
    """Return a MessagingUser for each user, and the result for each line of the access control list.

    `access`: None without one, when every user may do everything.
    """
    if access is None:
        everything = AclLine(Setting("", "", ""), None, True, "readwrite", EVERYTHING)
        access = AccessList([everything], [])
    notes = list(access.notes)
    known = {user.name for user in users}
    usable: list[AclLine] = []
    for each in access.lines:
        if each.pattern or each.user in known:
            usable.append(each)
        elif each.user is None:
            notes.append(each.setting.note(ImportOutcome.LEFT_OUT, "it is for clients without a user"))
        else:
            notes.append(each.setting.note(ImportOutcome.LEFT_OUT, f"user {each.user} has no password"))
    denied = {each for each in usable if each.access == DENY}
    crossed = {each for each in usable for deny in denied if each not in denied and _meet(deny, each)}
    for each in usable:
        if not each.setting.place:
            continue
        if each in denied:
            notes.append(each.setting.note(ImportOutcome.LEFT_OUT, NO_DENIALS))
        elif each in crossed:
            notes.append(each.setting.note(ImportOutcome.LEFT_OUT, "another line denies a part of it"))
        else:
            notes.append(each.setting.note(ImportOutcome.IMPORTED))
    granted = [each for each in usable if each not in denied and each not in crossed]
    names = ResourceNames(f"{space}.")
    documents = [
        {
            "apiVersion": version,
            "kind": "MessagingUser",
            "metadata": {"name": names.make(user.name, "user")},
            "spec": {
                "username": user.name,
                "authentication": {"type": "password"} | ({"passwordHash": user.hashed} if user.hashed else {}),
                "authorization": list(
                    _authorization(each for each in granted if each.pattern or each.user == user.name)
                ),
            },
        }
        for user in users
    ]
    return documents, notes


# --- inside -----------------------------------------------------------------------------------------------------------


def _meet(deny: AclLine, grant: AclLine) -> bool:
    """Return True when a denial takes something from a grant."""
    same = deny.pattern or grant.pattern or deny.user == grant.user
    return same and overlaps(_any_name(deny.topic), _any_name(grant.topic))


def _any_name(topic: str) -> str:
    """Return a filter that matches what a pattern with marks may match."""
    levels = ("+" if "%u" in level or "%c" in level else level for level in topic.split("/"))
    return "/".join(levels)


def _authorization(lines: Iterable[AclLine]) -> Iterator[dict[str, Any]]:
    """Yield rules: those with the same operations together."""
    topics: dict[str, list[str]] = {}
    for each in lines:
        topics.setdefault(each.access, []).append(each.topic)
    for access, found in topics.items():
        yield from rules_of(found, OPERATIONS[access])
