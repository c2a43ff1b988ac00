"""`waypost client trace`: show the packets of a running gateway's clients, and the outcome of each message."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
import msgspec

from edge.appliance.running import data_option, gateway_client, http_option
from edge.broker.tracing.events import LEGEND, TraceEvent, folded, is_failure, line_of
from edge.broker.tracing.limits import TRACE_IDLE_S
from edge.output.amounts import counted
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import say
from edge.output.text import line

SILENCE_S_MAX: Final = 4 * TRACE_IDLE_S
"""Time without a keep-alive after which the gateway counts as gone."""

_STYLES: Final = {"!!": "yellow", "--": "cyan"}
"""Colours of lines by their arrow."""


class _Enough(BaseException):
    """End of the trace. A signal may raise it anywhere, like KeyboardInterrupt. It is not an Exception, because code
    such as `click.echo`, in its search for a binary stream, ignores all of these."""


@click.command()
@click.option(
    "--client",
    metavar="ID",
    default="",
    help="Client: its MQTT client or AMQP container identifier, its user, or its address, with or without the port. "
    "It need not be connected yet.",
)
@click.option("--address", metavar="FILTER", default="", help="Only messages of these addresses: 'plant/#'.")
@click.option("--for", "duration", metavar="DURATION", help="End after this time: 30s, 5m.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many events.")
@data_option
@http_option
@json_option("trace-event", streams=True)
def trace(
    client: str,
    address: str,
    duration: str | None,
    count: int | None,
    data: Path | None,
    http: str | None,
    as_json: JsonOutput | None,
) -> None:
    """Show the packets of a client live. Each message is shown with its outcome.

    It answers why a device is not served: whether it reaches the gateway, whether its login is refused and why, which
    topics it really uses, and whether a message is stored, offered to subscribers, refused or discarded.

    \b
      waypost client trace --data ./gw1 --client meter7
      waypost client trace --data ./gw1 --client 10.0.0.17 --for 30s
      waypost client trace --data ./gw1 --address 'plant/7/#' --json

    \b
    Each line: time (UTC), direction, client@remote address, packet, #packet identifier,
    topic or address, flags, sizes, reason. Meaning of the signs:
      <-  a packet from the client        ->  a packet to the client
      ==  the outcome of a message        --  the connection: accepted, refused, closed
      <>  an HTTP request with its status

    Payloads, passwords and tokens are never shown. A traced client is served more slowly, with the same answers; other
    clients are not affected. A stored message is reported when it is on disk. Packets in flight when the trace starts
    may be missing. Ctrl-C ends the trace; the gateway ends it after a day.

    It needs the right `manage`: with --data it sends the gateway's operator token, so run it as the gateway's user.
    `waypost -vv run …` writes the same lines for all clients to the gateway's log.
    """
    if not (client or address):
        hint = "--client ID for one client, or --address FILTER for all that use an address; '#' matches all"
        raise CommandError("give a client or an address to trace", hint=hint, code=Exit.USAGE, error="nothing-to-trace")
    seconds = _seconds(duration)
    _check_filter(address)
    api = gateway_client(data, http)
    tally = _Tally(count, as_json=as_json, about=client)
    try:
        wanted: dict[str, Any] = {"client": client or None, "address": address or None}
        with api.open("trace", answer_s=SILENCE_S_MAX, **wanted) as answer, _until(seconds):
            for event in _events(answer):
                tally.show(event)
    except (_Enough, KeyboardInterrupt):
        tally.say_total()
        return
    except (OSError, http_client_error) as error:
        tally.say_total()
        raise CommandError(
            f"the connection to the gateway broke: {error}", hint=_HINT, code=Exit.UNREACHABLE, error="connection-lost"
        ) from None
    tally.say_total()
    raise CommandError("the gateway has ended the trace", hint=_HINT, code=Exit.UNREACHABLE, error="connection-lost")


http_client_error: Final = http.client.HTTPException
_HINT: Final = "check that it runs: waypost status"


class _Tally:
    """Print and count events."""

    def __init__(self, count_max: int | None, *, as_json: JsonOutput | None, about: str) -> None:
        self._count_max = count_max
        self._as_json = as_json
        self._about = about
        self._shown = self._dropped = 0
        self._columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def show(self, event: TraceEvent) -> None:
        """Print an event. Raises `_Enough` when it is the last one."""
        if event.kind == "started":
            self._say_begin(event)
            return
        if event.kind == "ended":
            say(f"the gateway ended the trace: {line(event.text)}; start it again to continue", err=True)
            raise _Enough
        if event.kind == "dropped":
            self._dropped += event.count or 0
        else:
            self._shown += 1
        if self._as_json:
            self._as_json.stream(event)
        else:
            text = line_of(event) if self._columns is None else folded(event, self._columns)
            style = "red" if is_failure(event) else next((_STYLES[sign] for sign in _STYLES if sign in text[:17]), None)
            say(text, style=style)
        sys.stdout.flush()
        if self._count_max is not None and self._shown >= self._count_max:
            raise _Enough

    def say_total(self) -> None:
        """Print how many events were shown, to stderr."""
        dropped = f", {self._dropped:,} not shown: more than the trace can keep" if self._dropped else ""
        say(f"{counted(self._shown, 'event')} shown{dropped}", err=True)

    def _say_begin(self, event: TraceEvent) -> None:
        """Print the legend, and whether the client is connected."""
        if self._as_json:
            self._as_json.stream(event)
            sys.stdout.flush()
            return
        connections = event.count or 0
        say(LEGEND, style="dim", err=True)
        if connections:
            say(f"tracing {counted(connections, 'connection')}; Ctrl-C ends", style="dim", err=True)
        else:
            name = f"{line(self._about)} is not connected" if self._about else "no client is connected"
            say(f"{name}: waiting; Ctrl-C ends", style="dim", err=True)


def _events(answer: http.client.HTTPResponse) -> Iterator[TraceEvent]:
    """Yield the gateway's events. Raises CommandError for an answer that is not a trace."""
    decode = msgspec.json.Decoder(TraceEvent).decode
    try:
        for text in answer:
            if text.strip():
                yield decode(text)
    except msgspec.MsgspecError:
        hint = "gateway and command may be of different versions: compare `waypost --version` with `waypost status`"
        raise CommandError("the gateway's answer is not a trace", hint=hint, error="answer-not-understood") from None


@contextlib.contextmanager
def _until(seconds: float | None) -> Iterator[None]:
    """Raise `_Enough` within the block after this time, or on SIGTERM."""

    def enough(_number: int, _frame: FrameType | None) -> None:
        raise _Enough

    before = signal.signal(signal.SIGALRM, enough), signal.signal(signal.SIGTERM, enough)
    signal.setitimer(signal.ITIMER_REAL, seconds or 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGTERM, before[1])


def _seconds(duration: str | None) -> float | None:
    """Return the seconds of --for. Raises CommandError."""
    from bridge.resources.values import duration as parse_duration

    try:
        seconds = None if duration is None else parse_duration(duration)
    except ValueError as error:
        raise CommandError(
            f"--for: {error}", hint="for example --for 30s", code=Exit.USAGE, error="invalid-value"
        ) from None
    if seconds is not None and seconds <= 0:
        raise CommandError(
            "--for: the time has to be longer than 0",
            hint="for example --for 30s",
            code=Exit.USAGE,
            error="invalid-value",
        )
    return seconds


def _check_filter(address: str) -> None:
    """Raise CommandError for an invalid filter of addresses."""
    from edge.broker.limits import TOPIC_LEVELS_MAX
    from edge.broker.message.mqtt_errors import RemoteError
    from edge.broker.mqtt.names import check_topic_filter

    try:
        if address:
            check_topic_filter(address, TOPIC_LEVELS_MAX)
    except RemoteError as error:
        hint = "for example --address 'plant/+/temp' or 'plant/#'"
        raise CommandError(
            f"--address {line(address)}: {error}", hint=hint, code=Exit.USAGE, error="invalid-value"
        ) from None
