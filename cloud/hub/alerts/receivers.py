"""Receivers of notifications: their settings, and the sending.

A webhook is signed as Standard Webhooks has it (`cloud.hub.webhooks.sending`). A notification that is sent again has
the same ``webhook-id``.
"""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from collections.abc import Mapping
from concurrent.futures import Executor
from email.message import EmailMessage
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from bridge.hidden import hides
from cloud.hub.alerts.limits import PING_S_RANGE, RECIPIENTS_MAX, SEND_S_MAX
from cloud.hub.registry.alerts import ReceiverRecord
from cloud.hub.webhooks.reach import AnyAddresses
from cloud.hub.webhooks.sending import PostFailed, SignedRequest, post_once
from edge.output.text import line

_MAIL: Final = r"^[^\s@<>,;:\"()\[\]\\]{1,64}@[^\s@<>,;:\"()\[\]\\]{1,255}$"
MailAddress = Annotated[str, msgspec.Meta(pattern=_MAIL)]
Host = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9.:_-]{1,255}$")]
Url = Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s@]{1,2000}$")]


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


async def send(record: ReceiverRecord, notification: Notification, now_s: float, threads: Executor) -> None:
    """Send a notification. `threads` send mails, and resolve names. Raises `NotificationFailed`."""
    settings, connect = settings_of(record), AnyAddresses(threads).connect
    try:
        match settings:
            case WebhookSettings():
                body = msgspec.json.encode(notification.document)
                request = SignedRequest(notification.delivery, body, (record.secret,))
                await post_once(settings.url, request, now_s, connect)
            case MailSettings():
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(threads, _mail, settings, record.secret, notification)
            case PingSettings():
                await post_once(settings.url, SignedRequest(notification.delivery, b"", ()), now_s, connect)
    except PostFailed as failure:
        raise NotificationFailed(str(failure)) from failure
    except ssl.SSLError as error:
        raise NotificationFailed(f"TLS: {error.reason or error}") from error
    except (OSError, smtplib.SMTPException, UnicodeError, ValueError) as error:
        raise NotificationFailed(line(error) or type(error).__name__) from error


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
