"""Changes of users in a credential file, for commands and APIs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from edge.broker.model.authorization import AccessRule
from edge.broker.security.credentials import (
    BY_RESOURCE,
    CredentialFile,
    CredentialUser,
    end_secrets,
    new_user,
    with_rules,
    with_secret,
)
from edge.broker.security.rights import format_rights


class UserNotFound(Exception):
    """No user has this name."""


class UserExists(Exception):
    """A user of this name exists already."""


class UserByResource(Exception):
    """The user comes from a MessagingUser resource, which has to be changed."""


def add_user(file: CredentialFile, name: str, rules: Sequence[AccessRule], password: str) -> CredentialUser:
    """Add a user with a password. Raises UserExists, CredentialsError."""
    if name in file.load().users:
        raise UserExists(f"user {name} exists already")
    user = with_secret(new_user(name, rules), password, at_s=time.time())
    file.put([user], new=True)
    return user


def replace_rights(file: CredentialFile, name: str, rules: Sequence[AccessRule]) -> CredentialUser:
    """Give a user these rights instead of its own. Raises UserNotFound, UserByResource, CredentialsError."""
    user = with_rules(changeable_user(file, name), rules)
    file.put([user])
    return user


def add_rights(file: CredentialFile, name: str, rules: Sequence[AccessRule]) -> CredentialUser:
    """Give a user these rights too; those that it has already change nothing. Raises as `replace_rights`."""
    user = changeable_user(file, name)
    known = set(format_rights(user.rules))
    fresh = [rule for rule in rules if not known.issuperset(format_rights([rule]))]
    return replace_rights(file, name, (*user.rules, *fresh)) if fresh else user


def rotate_secret(
    file: CredentialFile, name: str, password: str, *, ends_at_s: float, not_before: float = 0.0
) -> CredentialUser:
    """Give a user a new password; the old ones end at `ends_at_s` (UTC seconds). Raises as `replace_rights`."""
    ended = end_secrets(changeable_user(file, name), ends_at_s)
    user = with_secret(ended, password, at_s=time.time(), not_before=not_before)
    file.put([user])
    return user


def remove_user(file: CredentialFile, name: str) -> None:
    """Remove a user. Raises as `replace_rights`."""
    changeable_user(file, name)
    file.remove([name])


def changeable_user(file: CredentialFile, name: str) -> CredentialUser:
    """Return a user. Raises UserNotFound, UserByResource."""
    user = file.load().users.get(name)
    if user is None:
        raise UserNotFound(f"user {name} not found")
    if user.origin == BY_RESOURCE:
        raise UserByResource(f"user {name} comes from a MessagingUser resource")
    return user
