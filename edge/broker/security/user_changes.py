"""Changes of users where they are kept, for commands and APIs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from edge.broker.model.authorization import AccessRule
from edge.broker.security.credentials import (
    BY_RESOURCE,
    CredentialStore,
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


def add_user(store: CredentialStore, name: str, rules: Sequence[AccessRule], password: str) -> CredentialUser:
    """Add a user with a password. Raises UserExists, CredentialsError."""
    if name in store.load().users:
        raise UserExists(f"user {name} exists already")
    user = with_secret(new_user(name, rules), password, at_s=time.time())
    store.put([user], new=True)
    return user


def replace_rights(store: CredentialStore, name: str, rules: Sequence[AccessRule]) -> CredentialUser:
    """Give a user these rights instead of its own. Raises UserNotFound, UserByResource, CredentialsError."""
    user = with_rules(changeable_user(store, name), rules)
    store.put([user])
    return user


def add_rights(store: CredentialStore, name: str, rules: Sequence[AccessRule]) -> CredentialUser:
    """Give a user these rights too; those that it has already change nothing. Raises as `replace_rights`."""
    user = changeable_user(store, name)
    known = set(format_rights(user.rules))
    fresh = [rule for rule in rules if not known.issuperset(format_rights([rule]))]
    return replace_rights(store, name, (*user.rules, *fresh)) if fresh else user


def rotate_secret(
    store: CredentialStore, name: str, password: str, *, ends_at_s: float, not_before: float = 0.0
) -> CredentialUser:
    """Give a user a new password; the old ones end at `ends_at_s` (UTC seconds). Raises as `replace_rights`."""
    ended = end_secrets(changeable_user(store, name), ends_at_s)
    user = with_secret(ended, password, at_s=time.time(), not_before=not_before)
    store.put([user])
    return user


def remove_user(store: CredentialStore, name: str) -> None:
    """Remove a user. Raises as `replace_rights`."""
    changeable_user(store, name)
    store.remove([name])


def changeable_user(store: CredentialStore, name: str) -> CredentialUser:
    """Return a user. Raises UserNotFound, UserByResource."""
    user = store.load().users.get(name)
    if user is None:
        raise UserNotFound(f"user {name} not found")
    if user.origin == BY_RESOURCE:
        raise UserByResource(f"user {name} comes from a MessagingUser resource")
    return user
