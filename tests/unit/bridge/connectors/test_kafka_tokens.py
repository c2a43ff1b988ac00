"""Access tokens for SASL OAUTHBEARER, from an endpoint that checks requests by RFC 6749."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from aiokafka.conn import OAuthAuthenticator

from bridge.connectors.kafka.reasons import describe_error
from bridge.connectors.kafka.tokens import (
    AccessToken,
    ClientCredentialsTokens,
    TokenError,
    read_answer,
    request_token,
    tokens_of,
)
from bridge.connectors.limits import (
    KAFKA_TOKEN_ANSWER_BYTES_MAX,
    KAFKA_TOKEN_LIFETIME_S,
    KAFKA_TOKEN_LIFETIME_S_MAX,
    KAFKA_TOKEN_RETRY_S,
)
from bridge.connectors.settings import ClientIdentity, KafkaSettings, Mechanism
from tests.support.certificates import Authority
from tests.support.feeding import running
from tests.support.token_endpoint import CLIENT, SECRET, TokenEndpoint


class Source:
    """Gives numbered tokens at the times that a test says."""

    def __init__(self, lifetime_s: float = 100.0) -> None:
        self.now_s = 0.0
        self.fetched = 0
        self.failing = False
        self.tokens = ClientCredentialsTokens(self._fetch, lambda: self.now_s)
        self._lifetime_s = lifetime_s

    async def _fetch(self) -> AccessToken:
        await asyncio.sleep(0)
        if self.failing:
            raise TokenError("no answer")
        self.fetched += 1
        return AccessToken(f"t{self.fetched}", self._lifetime_s)


class TestLifetime:
    @running
    async def test_token_is_shared_until_three_quarters_of_its_lifetime(self) -> None:
        source = Source()
        assert await asyncio.gather(*(source.tokens.token() for _ in range(5))) == ["t1"] * 5
        source.now_s = 74.9
        assert await source.tokens.token() == "t1"
        source.now_s = 75.0
        assert await asyncio.gather(*(source.tokens.token() for _ in range(5))) == ["t2"] * 5
        assert source.fetched == 2

    @running
    async def test_present_token_is_used_while_the_endpoint_is_away(self) -> None:
        source = Source()
        await source.tokens.token()
        source.failing, source.now_s = True, 80.0
        assert await source.tokens.token() == "t1"
        source.failing = False
        assert await source.tokens.token() == "t1", "it is not asked again at once"
        source.now_s = 80.0 + KAFKA_TOKEN_RETRY_S
        assert await source.tokens.token() == "t2"

    @running
    async def test_ended_token_is_not_used(self) -> None:
        source = Source()
        await source.tokens.token()
        source.failing, source.now_s = True, 100.0
        with pytest.raises(TokenError):
            await source.tokens.token()

    @running
    async def test_refused_token_is_forgotten(self) -> None:
        source = Source()
        await source.tokens.token()
        source.tokens.forget()
        assert await source.tokens.token() == "t2"

    def test_token_is_hidden(self) -> None:
        assert "secret" not in repr(AccessToken("secret", 1.0))


class TestRequest:
    @running
    async def test_endpoint_accepts_the_request(self) -> None:
        async with TokenEndpoint().serving() as endpoint:
            settings = KafkaSettings(mechanism=Mechanism.OAUTHBEARER, token_url=endpoint.url, scope="kafka plant")
            tokens = tokens_of(ClientIdentity("gw1", CLIENT, SECRET), settings)
            assert await tokens.token() == "token-1"
            assert await tokens.token() == "token-1"
        assert (endpoint.requests, endpoint.refused, endpoint.scopes) == (1, [], ["kafka plant"])

    @running
    async def test_library_sends_the_token_as_rfc_7628_says(self) -> None:
        source = Source()
        message, expects_answer = await OAuthAuthenticator(sasl_oauth_token_provider=source.tokens).step(b"")
        assert (message, expects_answer) == (b"n,,\x01auth=Bearer t1\x01\x01", True)

    @running
    async def test_refusal_names_what_to_check(self) -> None:
        async with TokenEndpoint().serving() as endpoint:
            with pytest.raises(TokenError) as error:
                await request_token(endpoint.url, CLIENT, "wrong secret", scope=None, authority=None)
        text = describe_error(error.value)
        assert "invalid_client" in text
        assert "check the connector's credentials" in text
        assert "wrong secret" not in text

    @running
    async def test_missing_endpoint_is_named(self) -> None:
        async with TokenEndpoint().serving() as endpoint:
            pass
        with pytest.raises(TokenError) as error:
            await request_token(endpoint.url, CLIENT, SECRET, scope=None, authority=None)
        assert "check kafka.tokenUrl" in describe_error(error.value)

    @running
    async def test_large_answer_is_refused(self) -> None:
        endpoint = TokenEndpoint()
        endpoint.answer = (200, b" " * (KAFKA_TOKEN_ANSWER_BYTES_MAX + 1))
        async with endpoint.serving():
            with pytest.raises(TokenError) as error:
                await request_token(endpoint.url, CLIENT, SECRET, scope=None, authority=None)
        assert f"more than {KAFKA_TOKEN_ANSWER_BYTES_MAX} bytes" in error.value.why

    @running
    async def test_redirect_is_not_followed(self) -> None:
        endpoint = TokenEndpoint()
        endpoint.answer = (307, b"")
        async with endpoint.serving():
            with pytest.raises(TokenError):
                await request_token(endpoint.url, CLIENT, SECRET, scope=None, authority=None)
        assert endpoint.requests == 1

    def test_certificate_of_the_endpoint_is_checked(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        server = authority.issue("issuer")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(server.certificate, server.key)

        @running
        async def run() -> None:
            async with TokenEndpoint().serving(context) as endpoint:
                with pytest.raises(TokenError):
                    await request_token(endpoint.url, CLIENT, SECRET, scope=None, authority=None)
                trusted = await request_token(
                    endpoint.url, CLIENT, SECRET, scope=None, authority=str(authority.certificate)
                )
                assert trusted.value == "token-1"

        run()


@pytest.mark.parametrize(
    ("body", "lifetime_s"),
    [
        (b'{"access_token": "t", "token_type": "bearer", "expires_in": 30}', 30.0),
        (b'{"access_token": "t", "token_type": "Bearer"}', KAFKA_TOKEN_LIFETIME_S),
        (b'{"access_token": "t", "token_type": "Bearer", "expires_in": "soon"}', KAFKA_TOKEN_LIFETIME_S),
        (b'{"access_token": "t", "token_type": "Bearer", "expires_in": -1}', KAFKA_TOKEN_LIFETIME_S),
        (b'{"access_token": "t", "token_type": "Bearer", "expires_in": true}', KAFKA_TOKEN_LIFETIME_S),
        (b'{"access_token": "t", "token_type": "Bearer", "expires_in": NaN}', KAFKA_TOKEN_LIFETIME_S),
        (b'{"access_token": "t", "token_type": "Bearer", "expires_in": 1e999}', KAFKA_TOKEN_LIFETIME_S_MAX),
    ],
)
def test_lifetime_is_read(body: bytes, lifetime_s: float) -> None:
    assert read_answer(200, body) == AccessToken("t", lifetime_s)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),
        (200, b"[]"),
        (200, b'{"access_token": "", "token_type": "Bearer"}'),
        (200, b'{"access_token": "a\\u0001auth=Bearer b", "token_type": "Bearer"}'),
        (200, b'{"access_token": "t", "token_type": "mac"}'),
        (200, b"\xff"),
        (302, b'{"access_token": "t", "token_type": "Bearer"}'),
        (500, b"<html>"),
        (400, b'{"error": {"x": 1}}'),
    ],
)
def test_other_answers_are_refused(status: int, body: bytes) -> None:
    with pytest.raises(TokenError):
        read_answer(status, body)
