"""Logouts of people in the registry, on SQLite and on PostgreSQL, and between two hubs."""

from __future__ import annotations

import asyncio
import time

from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.sign_outs import RegistrySignOuts
from cloud.hub.shared_sign_outs import SharedSignOuts
from edge.broker.model.authorization import Grant
from edge.broker.security.limits import SIGN_OUTS_KEPT_S
from edge.broker.security.proof import TokenOrigin
from edge.broker.security.sign_outs import EndedSignIn, SignOuts
from edge.broker.security.token_grants import TokenGrants
from tests.contract.registry.conftest import Place

ISSUER = "https://id.example"


def ended(session: str, at_s: float | None = None) -> EndedSignIn:
    return EndedSignIn("a1", session, float(int(time.time())) if at_s is None else at_s)


def test_logouts_of_an_issuer_are_kept_in_order(place: Place) -> None:
    kept, other = RegistrySignOuts(place.url, ISSUER), RegistrySignOuts(place.url, "https://other")
    given = [ended("s2"), ended("s1"), ended("")]
    before = kept.mark()
    for each in given:
        kept.add(each)
    other.add(ended("s9"))
    assert kept.read() == given
    assert [each.session for each in other.read()] == ["s9"]
    assert kept.mark() != before
    kept.close()
    other.close()


def test_number_and_age_are_bounded(place: Place) -> None:
    kept = RegistrySignOuts(place.url, ISSUER, most=2)
    kept.add(ended("old", time.time() - SIGN_OUTS_KEPT_S - 10))
    assert kept.read() == []
    for name in ("s1", "s2", "s3"):
        mark = kept.mark()
        kept.add(ended(name))
        assert kept.mark() != mark
    assert [each.session for each in kept.read()] == ["s2", "s3"]
    kept.close()


def test_logout_at_one_hub_ends_the_sign_in_at_each(place: Place) -> None:
    async def play() -> None:
        loop, hint, grants = asyncio.get_running_loop(), ChangeHint(), TokenGrants()
        closed: asyncio.Future[None] = loop.create_future()
        grants.hold(Grant("ann@acme", "c", (), lambda _: closed.set_result(None)), TokenOrigin("", "a1", "s1"))
        here, there = SignOuts(TokenGrants()), SignOuts(grants)
        one = SharedSignOuts(place.url, ISSUER, here, ChangeHint())
        other = SharedSignOuts(place.url, ISSUER, there, hint)
        await one.start()
        await other.start()
        await here.add(ended("s1"))
        hint.give()
        await asyncio.wait_for(closed, 20)
        assert there.covers(TokenOrigin("", "a1", "s1"))
        assert (one.trouble, other.trouble) == (None, None)
        late = SignOuts(TokenGrants())
        third = SharedSignOuts(place.url, ISSUER, late, ChangeHint())
        await third.start()
        assert late.covers(TokenOrigin("", "a1", "s1")), "a hub that starts later"
        for each in (one, other, third):
            await each.stop()

    asyncio.run(play())
