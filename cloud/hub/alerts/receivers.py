"""Receivers of notifications: their settings, and the sending, which blocks.

A webhook is signed: ``Waypost-Signature: t=SECONDS,v1=HEX``, the HMAC-SHA256 of ``SECONDS.BODY`` with the receiver's
secret. A notification that is sent again has the same ``Waypost-Delivery``.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import secrets
import smtplib
import ssl
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec

from bridge.hidden import hides
from cloud.hub.alerts.limits import PING_S_RANGE, RECIPIENTS_MAX, SEND_S_MAX
from cloud.hub.registry.alerts import ReceiverRecord
from edge.output.text import line

SIGNATURE: Final = "Waypost-Signature"
DELIVERY: Final = "Waypost-Delivery"
_MAIL: Final = r"^[^\s@<>,;:\"()\[\]\\]{1,64}@[^\s@<>,;:\"()\[\]\\]{1,255}$"
MailAddress = Annotated[str, msgspec.Meta(pattern=_MAIL)]
Host = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9.:_-]{1,255}$")]
Url = Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s@]{1,2000}$")]
_ANSWER_BYTES: Final = 200
"""Bytes of an error answer that the failure shows."""


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True, tag="webhook", tag_field="kind"):
    """HTTP POST of a JSON document, signed."""

    url: Url


class MailSettings(msgspec.Struct, frozen=True, kw_only=True, tag="mail", tag_field="kind"):
    """Mail through an SMTP server."""

    host: Host
    to: Annotated[list[MailAddress], msgspec.Meta(min_length=1, max_length=RECIPIENTS_MAX)]
    sender: MailAddress
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: Annotated[str, msgspec.Meta(max_length=255)] = ""
    """User for the login; its password is the receiver's secret."""


class PingSettings(msgspec.Struct, frozen=True, kw_only=True, tag="ping", tag_field="kind"):
    """Dead-man ping: a request in intervals while the hub evaluates its rules; a service that misses it raises the
    alarm."""

    url: Url
    every_s: Annotated[int, msgspec.Meta(ge=PING_S_RANGE[0], le=PING_S_RANGE[1])] = 300


ReceiverSettings: TypeAlias = WebhookSettings | MailSettings | PingSettings


class NotificationFailed(Exception):
    """The receiver did not take a notification; the message says why."""


@hides("document", "text")
class Notification(NamedTuple):
    """Notification to send."""

    delivery: str
    """Identity, the same for each attempt."""
    subject: str
    document: Mapping[str, Any]
    text: str


def settings_of(record: ReceiverRecord) -> ReceiverSettings:
    """Return the settings of a receiver."""
    return msgspec.json.decode(record.settings, type=ReceiverSettings)  # type: ignore[no-any-return]


def make_secret() -> str:
    """Return a new key for the signatures of a webhook."""
    return secrets.token_urlsafe(32)


def sign(secret: str, body: bytes, at_s: int) -> str:
    """Return the value of the signature field."""
    digest = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def send(record: ReceiverRecord, notification: Notification, now_s: float) -> None:
    """Send a notification. Blocks. Raises `NotificationFailed`."""
    settings = settings_of(record)
    try:
        match settings:
            case WebhookSettings():
                body = msgspec.json.encode(notification.document)
                fields = {
                    "Content-Type": "application/json",
                    DELIVERY: notification.delivery,
                    SIGNATURE: sign(record.secret, body, int(now_s)),
                }
                _request(settings.url, body, fields)
            case MailSettings():
                _mail(settings, record.secret, notification)
            case PingSettings():
                _request(settings.url, b"", {})
    except ssl.SSLError as error:
        raise NotificationFailed(f"TLS: {error.reason or error}") from error
    except (OSError, smtplib.SMTPException, http.client.HTTPException, UnicodeError, ValueError) as error:
        raise NotificationFailed(line(error) or type(error).__name__) from error


def _request(url: str, body: bytes, fields: Mapping[str, str]) -> None:
    """Send a POST. Redirects are not followed: the receiver is the one that was configured."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=SEND_S_MAX)
    try:
        target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        connection.request("POST", target, body, {"User-Agent": "waypost-hub", **fields})
        answer = connection.getresponse()
        said = answer.read(_ANSWER_BYTES)
        if not 200 <= answer.status < 300:
            words = line(said.decode("utf-8", "replace").strip())
            raise NotificationFailed(f"it answers {answer.status} {line(answer.reason)}{f': {words}' if words else ''}")
    finally:
        connection.close()


def _mail(settings: MailSettings, password: str, notification: Notification) -> None:
    message = EmailMessage()
    message["Subject"] = line(notification.subject)
    message["From"] = settings.sender
    message["To"] = ", ".join(settings.to)
    message["Message-ID"] = f"<{notification.delivery}@waypost>"
    message.set_content(notification.text)
    context = ssl.create_default_context()
    with (
        smtplib.SMTP_SSL(settings.host, settings.port, timeout=SEND_S_MAX, context=context)
        if settings.security == "tls"
        else smtplib.SMTP(settings.host, settings.port, timeout=SEND_S_MAX)
    ) as server:
        if settings.security == "starttls":
            server.starttls(context=context)
        if settings.user:
            server.login(settings.user, password)
        server.send_message(message)
