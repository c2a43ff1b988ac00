"""Synchronize the users of a gateway's resources to its credential file."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import msgspec

from bridge.sasl.scram import derive
from edge.broker.configuration import ConfiguredUser
from edge.broker.security.credentials import (
    BY_RESOURCE,
    CredentialFile,
    CredentialSnapshot,
    CredentialUser,
    new_user,
    with_hash,
    with_rules,
    with_secret,
)

log = logging.getLogger(__name__)


def apply_resources(file: CredentialFile, configured: Sequence[ConfiguredUser]) -> CredentialSnapshot:
    """Write the users of resources to the file, and remove those that no longer have a resource.

    A user made by `waypost user add` is kept: its resource is ignored, with a warning. Raises CredentialsError.
    """
    found = file.load().users
    wanted = {user.name: user for user in configured}
    changed: list[CredentialUser] = []
    for name, described in wanted.items():
        existing = found.get(name)
        if existing is not None and existing.origin != BY_RESOURCE:
            log.warning(
                "user %s was made with `waypost user add`: its MessagingUser is ignored until that user is removed",
                name,
            )
            continue
        user = _updated(existing or new_user(name, origin=BY_RESOURCE), described)
        if user != existing:
            changed.append(user)
    gone = [name for name, user in found.items() if user.origin == BY_RESOURCE and name not in wanted]
    if changed:
        file.put(changed)
    if gone:
        file.remove(gone)
    return file.load()


def _updated(user: CredentialUser, described: ConfiguredUser) -> CredentialUser:
    user = with_rules(user, described.rules)
    if described.password_hash is not None:
        if [each.hashed for each in user.secrets] == [described.password_hash]:
            return user
        return with_hash(user, described.password_hash)
    if described.password is None:
        return msgspec.structs.replace(user, secrets=())
    if user.secrets and derive(described.password, user.salt, user.iterations) == user.secrets[-1].keys:
        return user
    return with_secret(msgspec.structs.replace(user, secrets=()), described.password, at_s=time.time())
