"""Device of the Python examples: settings, readings, commands and the clock. It knows nothing of the protocol."""

from __future__ import annotations

import email.utils
import http.client
import json
import os
import random
import secrets
import signal
import ssl
import sys
import threading
import time
import urllib.parse
from dataclasses import dataclass

from boot_loader import WATCHDOG_S
from spool import ReadingSpool, SpoolError

INTERVAL_MS_MIN, INTERVAL_MS_MAX = 10, 86_400_000
RETRY_S_MIN, RETRY_S_MAX = 0.25, 8.0
CLOCK_SET_AFTER = 1_700_000_000
"""An earlier time means that a clock was never set (s since 1970)."""
CLOCK_ASK_S = 3600
"""Time between two questions for the time."""
CLOCK_TIMEOUT_S = 5


class WrongSetting(Exception):
    """A setting is missing or wrong."""


@dataclass(frozen=True)
class ExampleSettings:
    """Settings, from variables of the environment."""

    host: str
    port: int
    device: str
    password: str
    ca: str
    certificate: str
    key: str
    spool: str
    spool_readings: int
    interval_ms: int
    time_url: str

    @classmethod
    def from_environment(cls, port: int, port_tls: int) -> ExampleSettings:
        """Read the environment; `port` and `port_tls` are the defaults of the protocol. Raises WrongSetting."""
        get = os.environ.get
        ca = get("WAYPOST_CA", "")
        for name in ("WAYPOST_CA", "WAYPOST_CERTIFICATE", "WAYPOST_KEY"):
            if get(name) and not os.access(os.environ[name], os.R_OK):
                raise WrongSetting(f"{name}={os.environ[name]} cannot be read")
        if get("WAYPOST_CERTIFICATE") and not ca:
            raise WrongSetting("WAYPOST_CERTIFICATE needs TLS: set WAYPOST_CA too")
        return cls(
            host=get("WAYPOST_HOST", "127.0.0.1"),
            port=_number("WAYPOST_PORT", port_tls if ca else port),
            device=get("WAYPOST_DEVICE", "pump7"),
            password=get("WAYPOST_PASSWORD", ""),
            ca=ca,
            certificate=get("WAYPOST_CERTIFICATE", ""),
            key=get("WAYPOST_KEY", ""),
            spool=get("WAYPOST_SPOOL", "readings.spool"),
            spool_readings=_number("WAYPOST_SPOOL_READINGS", 1024),
            interval_ms=_number("WAYPOST_INTERVAL_MS", 1000),
            time_url=get("WAYPOST_TIME_URL", ""),
        )

    def tls(self) -> ssl.SSLContext | None:
        """Return the context that trusts the gateway's authority and no other; None without TLS."""
        if not self.ca:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ca)
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key or None)
        return context


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        raise WrongSetting(f"{name}={os.environ[name]} is not a number") from None


class GatewayClock:
    """Time of the gateway: the field Date of an HTTP answer. Without `url` it is the time of this machine."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        self._url, self._context = url, context
        self._offset: float | None = None if url else 0.0
        """Time of the gateway minus monotonic time or, without `url`, minus the machine's time (s)."""
        self._asked: float | None = None

    def ask(self) -> None:
        """Ask the gateway, at most once an hour. After a failure readings have no time until it answers."""
        if not self._url or (self._asked is not None and time.monotonic() - self._asked < CLOCK_ASK_S):
            return
        try:
            at = email.utils.parsedate_to_datetime(self._date()).timestamp()
        except (OSError, http.client.HTTPException, ValueError) as error:
            log(f"no time from {self._url}: {error}")
            return
        if at > CLOCK_SET_AFTER:
            self._offset, self._asked = at - time.monotonic(), time.monotonic()

    def _date(self) -> str:
        """Return the field Date of an answer of the gateway."""
        url = urllib.parse.urlsplit(self._url)
        connection: http.client.HTTPConnection
        if url.scheme == "https":
            connection = http.client.HTTPSConnection(url.netloc, timeout=CLOCK_TIMEOUT_S, context=self._context)
        else:
            connection = http.client.HTTPConnection(url.netloc, timeout=CLOCK_TIMEOUT_S)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().headers.get("Date", "")
        finally:
            connection.close()

    def now(self) -> int | None:
        """Return seconds since 1970; None if the time is not known."""
        if self._offset is None:
            return None
        at = time.monotonic() + self._offset if self._url else time.time()
        return int(at) if at > CLOCK_SET_AFTER else None


class ExampleDevice:
    """Measures into the spool and obeys commands. `measure_until_stopped` runs in a thread of its own."""

    def __init__(self, settings: ExampleSettings, spool: ReadingSpool, clock: GatewayClock) -> None:
        self.settings, self.spool, self.clock = settings, spool, clock
        self.interval_ms = settings.interval_ms
        self.boot = secrets.token_hex(4)
        self.stopping = threading.Event()
        self._changed = threading.Event()
        """Set by a new interval, and by a stop."""
        self.failed: SpoolError | None = None
        self._measured = threading.Event()
        """Set after the last reading."""

    @property
    def finished(self) -> bool:
        """True when the device was stopped, and every reading is acknowledged; or when the disk failed."""
        return self.failed is not None or (self._measured.is_set() and not len(self.spool))

    def stop(self) -> None:
        """Measure no longer; the program ends once every reading is acknowledged. Safe in a signal handler."""
        self.stopping.set()
        self._changed.set()

    def measure(self) -> None:
        """Store one reading. Read your own sensors here."""
        reading: dict[str, object] = {"device": self.settings.device, "boot": self.boot, "seq": self.spool.next}
        if (at := self.clock.now()) is not None:
            reading["at"] = at
        reading["load_1m"] = round(os.getloadavg()[0], 2)
        self.spool.add(json.dumps(reading, separators=(",", ":")).encode())

    def measure_until_stopped(self) -> None:
        """Measure at each interval, until the device is stopped or the disk fails."""
        try:
            self._measure_at_intervals()
        finally:
            self._measured.set()

    def _measure_at_intervals(self) -> None:
        due = time.monotonic()
        while not self.stopping.is_set():
            try:
                self.measure()
            except SpoolError as error:
                self.failed = error
                return
            measured, due = time.monotonic(), max(due + self.interval_ms / 1000, time.monotonic())
            while self._changed.wait(max(0.0, due - time.monotonic())) and not self.stopping.is_set():
                self._changed.clear()
                due = measured + self.interval_ms / 1000

    def obey(self, payload: bytes) -> dict[str, object]:
        """Obey a command; return the answer. The same command twice has the effect of one."""
        answer: dict[str, object] = {}
        try:
            command = json.loads(payload)
            interval_ms = command.get("interval_ms", self.interval_ms)
            if "id" in command:
                answer["id"] = command["id"]
        except (ValueError, AttributeError):
            return _refusal(answer, "not a JSON object")
        if not {"interval_ms", "stop"} & set(command):
            return _refusal(answer, "unknown command")
        if type(interval_ms) is not int or not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
            return _refusal(answer, f"interval_ms has to be {INTERVAL_MS_MIN} to {INTERVAL_MS_MAX}")
        if interval_ms != self.interval_ms:
            self.interval_ms = interval_ms
            self._changed.set()
        if command.get("stop") is True:
            self.stop()
        log(f"command obeyed: interval {interval_ms} ms" + (", stop" if self.stopping.is_set() else ""))
        return answer | {"status": 200, "interval_ms": interval_ms}


def _refusal(answer: dict[str, object], error: str) -> dict[str, object]:
    log(f"command refused: {error}")
    return answer | {"status": 400, "error": error}


class RetryDelay:
    """Delays between attempts to connect: doubled each time, with jitter, so that a thousand devices do not return
    at the same moment.
    """

    def __init__(self) -> None:
        self._next_s = RETRY_S_MIN

    def reset(self) -> None:
        self._next_s = RETRY_S_MIN

    def take(self) -> float:
        """Return the next delay (s)."""
        delay, self._next_s = self._next_s, min(self._next_s * 2, RETRY_S_MAX)
        return delay * random.uniform(0.5, 1)  # noqa: S311 - not a secret


class Watchdog:
    """Kills a program that hangs, if the boot loader started it (SIGALRM)."""

    def __init__(self) -> None:
        watched = "WAYPOST_SLOT" in os.environ
        self._seconds = int(os.environ.get("WAYPOST_WATCHDOG_S", WATCHDOG_S)) if watched else 0

    def feed(self) -> None:
        """Tell that the program is alive."""
        if self._seconds:
            signal.alarm(self._seconds)


def start_updates(device: ExampleDevice) -> None:
    """Start a thread that updates the program, if WAYPOST_UPDATE_URL is set and the boot loader started it."""
    url = os.environ.get("WAYPOST_UPDATE_URL", "")
    if not url:
        return
    if "WAYPOST_SLOT" not in os.environ:
        raise WrongSetting("WAYPOST_UPDATE_URL needs the boot loader: start boot_loader.py")
    from update import ArtefactClient, SlotUpdater

    updater = SlotUpdater(ArtefactClient(url, device.settings), device.spool, device.clock)
    threading.Thread(target=updater.run, daemon=True).start()


def log(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)
