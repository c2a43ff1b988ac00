"""Client of an HTTP endpoint: sends messages in batches, one request at a time, so that they arrive in order.

A request is retried with the same messages and the same name until the server accepts or rejects it. A server does not
report which message of a batch it rejects, so a rejected batch is halved until the message is found.
The URL comes from the configuration and redirects are not followed, so devices cannot influence the server.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple

import httpx

from bridge.client_attempt import ConnectorError, ConnectorTraffic
from bridge.connecting import socket_to, streams_over
from bridge.connectors.http import verdict
from bridge.connectors.http.body import CONTENT_TYPES, encode
from bridge.connectors.http.network import transport
from bridge.connectors.http.signing import batch_name, secret_of, signature
from bridge.connectors.http.verdict import ResponseVerdict
from bridge.connectors.limits import (
    CONNECT_TIMEOUT_S,
    HTTP_ANSWER_BYTES_MAX,
    HTTP_ANSWER_TIMEOUT_S,
)
from bridge.connectors.messages import ConnectorMessage, MessageName, Translate, messages
from bridge.connectors.settings import ClientIdentity, HttpSettings
from bridge.connectors.ticket_answers import ACCEPTED, AnswerCollector, MessageAnswer, TicketAnswers
from bridge.dialer import PeerEndpoint
from bridge.forwarders.outbox import Outgoing
from bridge.forwarders.outcome import ForwardOutcome
from bridge.version import VERSION

_ANSWER_CHARACTERS: Final = 200


class _QueuedMessage(NamedTuple):
    """A message of a batch, with the answers of its ticket."""

    answers: TicketAnswers
    message: ConnectorMessage

    @property
    def key(self) -> tuple[MessageName, str]:
        """Name and target of the message: two forwarders may send the same message."""
        return self.message.name, self.message.target


class _Reply(NamedTuple):
    status: int
    retry_after: str | None
    text: str


class HttpClient:
    """`bridge.client_attempt.ConnectorClient` of an HTTP endpoint; lives as long as the connector."""

    def __init__(
        self,
        identity: ClientIdentity,
        settings: HttpSettings,
        *,
        translate: Translate,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`tls` creates the context for the requests of one run, and may raise OSError.

        Raises `ValueError` when the signing secret is not valid.
        """
        self._identity = identity
        self._settings = settings
        self._key = None if settings.signing_secret is None else secret_of(settings.signing_secret)
        self._translate = translate
        self._tls = tls
        self._unanswered: list[tuple[MessageName, str]] = []
        """Messages of the request without an answer at the end of its connection: the same request is sent again."""

    async def run(self, endpoint: PeerEndpoint, traffic: ConnectorTraffic) -> None:
        """Send requests until one fails. Raises ConnectorError, OSError or TimeoutError."""
        settings = self._settings
        context = self._tls() if endpoint.tls and self._tls is not None else None
        await _check_reachable(endpoint, context)
        async with httpx.AsyncClient(
            transport=transport(context),
            follow_redirects=False,
            trust_env=False,
            timeout=httpx.Timeout(HTTP_ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            headers=_headers(settings),
            auth=_authentication(self._identity),
        ) as client:
            traffic.up(str(endpoint))
            batches = _BatchSender(settings, self._translate, traffic, self._unanswered)
            requests = _Requests(settings, self._key, client, _url(endpoint, settings.path))
            collector = AnswerCollector(traffic.settle)
            while True:
                batch = await batches.next_batch()
                self._unanswered = [item.key for item in batch]
                async for part, answer in requests.answers(batch):
                    for item in part:
                        collector.record(item.answers, item.message.place, answer)
                    collector.flush()
                    self._unanswered = self._unanswered[len(part) :]


class _BatchSender:
    """Batches of one run. Each batch becomes one request."""

    def __init__(
        self,
        settings: HttpSettings,
        translate: Translate,
        traffic: ConnectorTraffic,
        unanswered: Sequence[tuple[MessageName, str]],
    ) -> None:
        self._settings = settings
        self._translate = translate
        self._traffic = traffic
        self._unanswered = unanswered
        self._next: list[_QueuedMessage] = []
        """Messages taken along with those of a retried request; they belong to the next one."""

    async def next_batch(self) -> list[_QueuedMessage]:
        """Return the messages of the next request: at least one."""
        if self._next:
            batch, self._next = self._next, []
        elif self._unanswered:
            batch = await self._retried_batch()
        else:
            batch = await self._take(self._settings.batch_messages, self._settings.batch_bytes)
        return batch

    async def _retried_batch(self) -> list[_QueuedMessage]:
        """Return the messages of the unanswered request, if the forwarders still have all of them."""
        wanted, self._unanswered = self._unanswered, ()
        settings = self._settings
        items = await self._take(settings.batch_messages + len(wanted), 2 * settings.batch_bytes)
        found = {item.key: item for item in items}
        if not all(key in found for key in wanted):  # a forwarder was removed
            return items
        same = set(wanted)
        self._next = [item for item in items if item.key not in same]
        return [found[key] for key in wanted]

    async def _take(self, messages_max: int, bytes_max: int) -> list[_QueuedMessage]:
        """Take messages of the forwarders, and wait for more until the batch age is reached."""
        taken: list[Outgoing] = []
        try:
            async with asyncio.timeout(None) as limit:
                while messages_max > 0 and bytes_max > 0:
                    more = await self._traffic.outgoing(messages_max, bytes_max)
                    if not taken:
                        limit.reschedule(asyncio.get_running_loop().time() + self._settings.batch_age_s)
                    taken += more
                    messages_max -= sum(len(outgoing) for outgoing in more)
                    bytes_max -= sum(outgoing.stored.run.size for outgoing in more)
        except TimeoutError:
            pass
        return [
            _QueuedMessage(answers, message)
            for outgoing in taken
            for answers in (TicketAnswers(outgoing.ticket, len(outgoing)),)
            for message in messages(outgoing, self._translate)
        ]


class _Requests:
    """Requests to one URL."""

    def __init__(self, settings: HttpSettings, key: bytes | None, client: httpx.AsyncClient, url: str) -> None:
        self._settings = settings
        self._key = key
        self._client = client
        self._url = url

    async def answers(self, batch: list[_QueuedMessage]) -> AsyncIterator[tuple[list[_QueuedMessage], MessageAnswer]]:
        """Yield the parts of a batch in order, each with its answer. A batch is one part unless the server rejects it.

        Raises ConnectorError when a part gets no answer.
        """
        parts = [batch]
        while parts:
            part = parts.pop()
            reply = await self._post([item.message for item in part])
            match verdict.verdict(reply.status):
                case ResponseVerdict.ACCEPTED:
                    yield part, ACCEPTED
                case ResponseVerdict.REJECTED if len(part) > 1:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
                case ResponseVerdict.REJECTED:
                    yield part, MessageAnswer(ForwardOutcome.REJECTED, _describe(reply))
                case ResponseVerdict.RETRY:
                    raise ConnectorError(_describe(reply), verdict.wait_s(reply.retry_after, time.time()))
                case ResponseVerdict.MISCONFIGURED:
                    raise ConnectorError(_describe(reply))

    async def _post(self, batch: Sequence[ConnectorMessage]) -> _Reply:
        name, body = batch_name(batch), encode(batch, self._settings.format)
        headers = {"Idempotency-Key": name, "webhook-id": name}
        if self._key is not None:
            timestamp = int(time.time())
            headers["webhook-timestamp"] = str(timestamp)
            headers["webhook-signature"] = signature(self._key, name, timestamp, body)
        try:
            async with asyncio.timeout(HTTP_ANSWER_TIMEOUT_S):
                return await self._exchange(headers, body)
        except TimeoutError:
            raise ConnectorError(f"no answer within {HTTP_ANSWER_TIMEOUT_S:g} s") from None
        except httpx.HTTPError as error:
            raise ConnectorError(f"{type(error).__name__}: {error}".rstrip(": ")) from None

    async def _exchange(self, headers: dict[str, str], body: bytes) -> _Reply:
        async with self._client.stream("POST", self._url, headers=headers, content=body) as response:
            text = b""
            if not response.is_success:
                async for chunk in response.aiter_raw():
                    text += chunk
                    if len(text) >= HTTP_ANSWER_BYTES_MAX:
                        break
            return _Reply(response.status_code, response.headers.get("retry-after"), _line(text))


async def _check_reachable(endpoint: PeerEndpoint, context: ssl.SSLContext | None) -> None:
    """Connect and disconnect, to detect an unreachable server before messages are taken."""
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        _, writer = await streams_over(await socket_to(endpoint.host, endpoint.port), context, endpoint.host)
    writer.close()


def _url(endpoint: PeerEndpoint, path: str) -> str:
    return f"{'https' if endpoint.tls else 'http'}://{endpoint.authority}{path}"


def _authentication(identity: ClientIdentity) -> httpx.BasicAuth | None:
    return None if identity.username is None else httpx.BasicAuth(identity.username, identity.password or "")


def _headers(settings: HttpSettings) -> dict[str, str]:
    return {
        "Content-Type": CONTENT_TYPES[settings.format],
        "User-Agent": f"waypost/{VERSION}",
        "Accept-Encoding": "identity",  # an answer must not expand
    }


def _line(text: bytes) -> str:
    """Return the start of an answer as one printable line for a log."""
    shown = text[:HTTP_ANSWER_BYTES_MAX].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in shown)[:_ANSWER_CHARACTERS].strip()


def _describe(reply: _Reply) -> str:
    """Describe an answer in one line, with the next step."""
    text = f" ({reply.text})" if reply.text else ""
    advice = verdict.advice(reply.status)
    return f"the server answers {verdict.phrase(reply.status)}{text}{'; ' if advice else ''}{advice}"
