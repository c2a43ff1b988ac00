"""An issuer with introspection: what is asked about, by a client with a secret, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from edge.broker.configuration import TokenIntrospection, TokenIssuer
from edge.broker.security.issuer import Issuer
from edge.broker.security.issuer_requests import IntrospectionEndpoint, IssuerError, IssuerUnreachable, TokenUnreadable
from edge.broker.security.limits import ISSUER_DOCUMENT_BYTES_MAX
from edge.broker.security.proof import LoginVerdict, VerifiedIdentity
from edge.broker.security.sign_in import IssuedTokens
from edge.broker.security.tokens import digest_of
from tests.support.issuer import AUDIENCE, SigningKey, TestIssuer

SECRET = "s3cret: ü%"


def configuration(server: TestIssuer, secret: str = SECRET) -> TokenIssuer:
    asking = TokenIntrospection(client_id="node", client_secret=secret)
    return TokenIssuer(issuer=server.url, audience=AUDIENCE, client_id="console", introspection=asking)


def playing(play: Callable[[TestIssuer, Issuer], Coroutine[Any, Any, None]], data: Path, secret: str = SECRET) -> None:
    async def with_issuer(server: TestIssuer) -> None:
        issuer = Issuer(configuration(server, secret), data)
        issuer.start()
        try:
            await play(server, issuer)
        finally:
            await issuer.stop()

    with TestIssuer() as server:
        server.introspection_secret = "s3cret%3A%20%C3%BC%25"  # as RFC 6749 section 2.3.1 has it
        asyncio.run(with_issuer(server))


Verdict = tuple[LoginVerdict, VerifiedIdentity | None]


async def shown(show: Callable[[Callable[..., None]], None]) -> Verdict:
    done: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
    show(lambda said, proven: done.set_result((said, proven)))
    return await asyncio.wait_for(done, 20)


async def checked(issuer: Issuer, token: str) -> Verdict:
    return await shown(lambda decided: issuer.check(token.encode(), decided))


class TestIssuerAsked:
    def test_token_with_a_signature_that_was_ended(self, tmp_path: Path) -> None:
        async def play(server: TestIssuer, issuer: Issuer) -> None:
            token = server.token("ann", sid="s1")
            said, proven = await checked(issuer, token)
            assert said is LoginVerdict.ACCEPTED
            assert proven is not None
            assert proven.origin is not None
            assert proven.origin[:3] == (digest_of(token.encode()), "ann", "s1")
            other = server.token("bob")
            server.ended.add(other)
            assert (await checked(issuer, other))[0] is LoginVerdict.ENDED

        playing(play, tmp_path)

    def test_opaque_token(self, tmp_path: Path) -> None:
        async def play(server: TestIssuer, issuer: Issuer) -> None:
            server.opaque_tokens["2YotnFZFEjr1zCsicMWpAA"] = server.claims("pump", "send:up/#")
            said, proven = await checked(issuer, "2YotnFZFEjr1zCsicMWpAA")
            assert said is LoginVerdict.ACCEPTED
            assert proven is not None
            assert proven.user == "pump"
            assert (await checked(issuer, "made-up"))[0] is LoginVerdict.REFUSED

        playing(play, tmp_path)

    def test_forged_tokens_and_other_bytes_are_not_asked_about(self, tmp_path: Path) -> None:
        async def play(server: TestIssuer, issuer: Issuer) -> None:
            assert (await checked(issuer, server.token()))[0] is LoginVerdict.ACCEPTED
            forged = SigningKey("k1").token(server.claims())
            for token in (forged, server.token(aud="other"), server.token(expires_in_s=-1.0), "a b", "a\nb", "ü", ""):
                assert (await checked(issuer, token))[0] is LoginVerdict.REFUSED
            assert forged not in server.introspected
            assert sum(token.count(".") == 2 for token in server.introspected) == 1

        playing(play, tmp_path)

    def test_sign_in_of_a_person_that_was_ended(self, tmp_path: Path) -> None:
        async def play(server: TestIssuer, issuer: Issuer) -> None:
            access = server.token("ann", "view:#", sid="s1")
            tokens = IssuedTokens(server.token("ann", aud="console", nonce="n"), access)
            said, proven = await shown(lambda decided: issuer.check_person(tokens, "n", decided))
            assert said is LoginVerdict.ACCEPTED
            assert proven is not None
            assert proven.origin is not None
            assert proven.origin[:3] == (digest_of(access.encode()), "ann", "s1")
            server.ended.add(ended := server.token("ann", "view:#", sid="s2"))
            said, _ = await shown(lambda decided: issuer.check_person(IssuedTokens("", ended), None, decided))
            assert said is LoginVerdict.ENDED

        playing(play, tmp_path)

    def test_wrong_secret_is_a_problem(self, tmp_path: Path) -> None:
        async def play(server: TestIssuer, issuer: Issuer) -> None:
            assert (await checked(issuer, server.token()))[0] is LoginVerdict.BUSY
            assert "no new bearer token" in str(issuer.overdue)
            assert "clientSecret" in str(issuer.overdue)
            assert "other" not in str(issuer.overdue)

        playing(play, tmp_path, secret="other")

    def test_opaque_token_without_introspection_is_refused(self, tmp_path: Path) -> None:
        async def play(server: TestIssuer) -> None:
            issuer = Issuer(TokenIssuer(issuer=server.url, audience=AUDIENCE), tmp_path)
            issuer.start()
            assert (await checked(issuer, server.token()))[0] is LoginVerdict.ACCEPTED
            assert (await checked(issuer, "2YotnFZFEjr1zCsicMWpAA"))[0] is LoginVerdict.REFUSED
            await issuer.stop()

        with TestIssuer() as server:
            asyncio.run(play(server))


def test_secret_is_not_shown() -> None:
    with TestIssuer() as server:
        assert SECRET not in repr(configuration(server))


class TestEndpoint:
    def ask(self, server: TestIssuer, status: int, document: Any) -> Any:
        server.introspection_secret = "x"
        server.introspect = lambda *_: (status, document)  # type: ignore[method-assign]
        return IntrospectionEndpoint(configuration(server), "node", "x").ask(b"t")

    def test_token_that_the_issuer_cannot_read_raises(self) -> None:
        with TestIssuer() as server, pytest.raises(TokenUnreadable):
            self.ask(server, 400, {"error": "invalid_request"})

    def test_issuer_that_is_not_there_raises(self) -> None:
        with pytest.raises(IssuerUnreachable):
            IntrospectionEndpoint(TokenIssuer(issuer="http://127.0.0.1:1/x", audience=AUDIENCE), "node", "x").ask(b"t")

    @pytest.mark.parametrize(
        ("status", "document"),
        [
            (401, {}),
            (403, {}),
            (500, {"active": True}),
            (302, {"active": True}),
            (200, {}),
            (200, {"active": "true"}),
            (200, []),
            (200, {"active": True, "x": "x" * ISSUER_DOCUMENT_BYTES_MAX}),
        ],
        ids=["client", "right", "error", "redirect", "empty", "text", "list", "large"],
    )
    def test_other_answers_raise(self, status: int, document: Any) -> None:
        with TestIssuer() as server, pytest.raises(IssuerError):
            self.ask(server, status, document)

    @pytest.mark.parametrize("place", [None, "https://elsewhere.example/introspect", "ftp://x", "http://[", 7])
    def test_address_that_the_document_must_not_name_raises(self, place: Any) -> None:
        with TestIssuer() as server:
            server.document = lambda path: {"issuer": server.url, "introspection_endpoint": place}  # type: ignore[method-assign]
            with pytest.raises(IssuerError):
                IntrospectionEndpoint(configuration(server), "node", "x").ask(b"t")

    def test_address_that_moved_is_found_again(self) -> None:
        with TestIssuer() as server:
            server.introspection_secret = "x"
            endpoint = IntrospectionEndpoint(configuration(server), "node", "x")
            assert endpoint.ask(b"t") == {"active": False}
            asked = len(server.requests)
            assert endpoint.ask(b"t") == {"active": False}
            assert len(server.requests) == asked
            server.answering = False
            with pytest.raises(IssuerError):
                endpoint.ask(b"t")
            server.answering = True
            assert endpoint.ask(b"t") == {"active": False}
            assert len(server.requests) == asked + 1
