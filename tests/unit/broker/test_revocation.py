"""Connections of changed users are cut: an exception of one does not keep another one open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge.broker.configuration import AuthenticationMode
from edge.broker.model.authorization import AccessRule, Ended, Operation
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.credentials import CredentialSnapshot, new_user
from edge.broker.security.proof import VerifiedIdentity

RULES = (AccessRule(("up/#",), frozenset({Operation.SEND, Operation.RECV})),)


@pytest.mark.parametrize("everybody", [False, True], ids=["users changed", "mode changed"])
def test_connection_that_raises_does_not_protect_another(everybody: bool) -> None:
    users = [new_user(name, RULES) for name in ("ann", "bob", "cay")]
    gate = Authenticator(
        AuthenticationMode.STANDARD,
        CredentialSnapshot({user.name: user for user in users}),
        worker=lambda work, done: done(work()),
        clock=lambda: 0.0,
    )
    cut: list[str] = []

    def raising(why: Ended) -> None:
        raise LookupError("a bug")

    def revocation(name: str) -> Callable[[Ended], None]:
        return raising if name == "bob" else lambda _why: cut.append(name)

    grants = [gate.grant(VerifiedIdentity(user.name), user.name, revocation(user.name)) for user in users]
    if everybody:
        gate.revoke_all()
    else:
        gate.update(CredentialSnapshot())
    assert sorted(cut) == ["ann", "cay"]
    bob = grants[1]
    assert bob is not None
    assert not bob.may_send("up/1")
