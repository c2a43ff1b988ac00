"""Update of the program by itself: from the gateway into the slot that does not run, with a way back.

States: `downloading`, `verified`, `installed`, `started` (on trial), `healthy`, `rolled-back`. Each is on disk before
the next step, so a power cut repeats at most one step. The gateway gets a report of each but `started`.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import random
import time
import urllib.parse
from dataclasses import asdict, dataclass

import firmware
from boot_loader import EXIT_RESTART, BootRecord, write_durably
from device import ExampleSettings, GatewayClock, RetryDelay, log
from manifest import ENVELOPE_BYTES_MAX, VERSION, Place, Refused, open_manifest
from spool import ReadingSpool

PART_BYTES = 128 << 10
"""Bytes of one request, and the most that a reset makes it fetch again."""
TRIES_MAX = 3
"""Trials of one image; then it is refused until another manifest comes."""
ASK_S, TRIAL_S, TIMEOUT_S = 3600, 600, 30
TRY_AGAIN = ("not-healthy", "restarted", "cannot-install")
"""Reasons after which the same image is tried again."""


@dataclass
class StoredUpdate:
    """State of the update, on disk."""

    state: str = ""
    reported: str = ""
    reason: str = ""
    version: str = ""
    sequence: int = 0
    size: int = 0
    sha256: str = ""
    envelope: str = ""
    """SHA-256 of the signed manifest."""
    done: int = 0
    """Bytes of the image that are in the slot."""
    tries: int = 0
    own: int = 0
    """Sequence of the program that wrote this."""


class GoneError(Exception):
    """The gateway has no such artefact, or has another one now."""


class ArtefactClient:
    """Artefacts of the gateway, over HTTP. Methods raise OSError, http.client.HTTPException and GoneError."""

    def __init__(self, url: str, settings: ExampleSettings) -> None:
        self._url, self._settings = urllib.parse.urlsplit(url), settings
        pair = f"{settings.device}:{settings.password}".encode()
        safe = self._url.scheme == "https" or not settings.ca  # no password over HTTP where MQTT has TLS
        login = {"Authorization": "Basic " + base64.b64encode(pair).decode()}
        self._login = login if settings.password and safe else {}

    def get(self, path: str, fields: dict[str, str], size_max: int, status: int = 200) -> bytes:
        """Return the content of a path."""
        found, content = self._ask("GET", path, fields, None, size_max)
        if found == 416 and status == 206:
            return b""
        if found != status:
            raise GoneError(found)
        return content

    def report(self, version: str, state: str, reason: str, sha256: str) -> None:
        """Report a state; one about an artefact that the gateway no longer has is dropped."""
        body = json.dumps({"state": state, "reason": reason, "sha256": sha256}).encode()
        self._ask("POST", f"/artefacts/{firmware.NAME}/{version}/report", {}, body, 1 << 16)

    def _ask(
        self, method: str, path: str, fields: dict[str, str], body: bytes | None, size_max: int
    ) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        options = {"context": self._settings.tls()} if self._url.scheme == "https" else {}
        connection = kind(self._url.netloc, timeout=TIMEOUT_S, **options)  # type: ignore[arg-type]
        try:
            connection.request(method, path, body, self._login | fields)
            answer = connection.getresponse()
            if answer.status in (401, 403, 408, 429) or answer.status >= 500:
                raise OSError(f"the gateway answers {answer.status}")
            content = answer.read(size_max + 1)
        finally:
            connection.close()
        return answer.status, content


class SlotUpdater:
    """Updates the program in a thread of its own; it ends the process for a restart."""

    def __init__(self, client: ArtefactClient, spool: ReadingSpool, clock: GatewayClock) -> None:
        get = os.environ.get
        self._client, self._spool, self._clock = client, spool, clock
        self._folder, self._slot = os.environ["WAYPOST_SLOTS"], int(os.environ["WAYPOST_SLOT"])
        self._ask_s, self._trial_s = int(get("WAYPOST_UPDATE_S", ASK_S)), int(get("WAYPOST_TRIAL_S", TRIAL_S))
        self._image = os.path.join(self._folder, f"slot{1 - self._slot}")
        self._place = Place(firmware.NAME, firmware.BOARD, firmware.VERSION, firmware.SEQUENCE)
        self._look_at = 0.0
        self._state = self._load()

    def run(self) -> None:
        """Update for ever."""
        log(f"firmware: {firmware.NAME} {firmware.VERSION}")
        self._judge_start()
        self._spool.delivered.wait()
        retry = RetryDelay()
        while True:
            try:
                time.sleep(self._step())
                retry.reset()
            except (OSError, http.client.HTTPException) as error:
                log(f"update: {error}")
                time.sleep(retry.take())
            except Refused as why:
                self._end_try(why.reason)

    # --- state --------------------------------------------------------------------------------------------------

    def _load(self) -> StoredUpdate:
        try:
            with open(os.path.join(self._folder, "update.json")) as file:
                state = StoredUpdate(**json.load(file))
        except FileNotFoundError:
            return StoredUpdate()
        if state.own != firmware.SEQUENCE and state.state == "rolled-back":
            state.tries = 0  # what another version has refused, this one may take
        return state

    def _save(self, state: str) -> None:
        self._state.state, self._state.own = state, firmware.SEQUENCE
        write_durably(os.path.join(self._folder, "update.json"), json.dumps(asdict(self._state)).encode())

    def _look_later(self) -> None:
        self._look_at = time.monotonic() + self._ask_s * random.uniform(0.5, 1)  # noqa: S311 - not a secret

    def _end_try(self, reason: str) -> None:
        """Stay with the version that runs; the same manifest is tried again a few times, unless that cannot help."""
        state = self._state
        helps = state.state == "downloading" or reason in TRY_AGAIN
        state.tries = state.tries + 1 if helps else TRIES_MAX
        state.reported, state.reason, state.done = "", reason, 0
        log(f"the new version is refused, or was rolled back: {reason}")
        self._save("rolled-back")
        self._look_later()

    # --- the trial ----------------------------------------------------------------------------------------------

    def _judge_start(self) -> None:
        """Find out what became of a version that was installed before this start, and try the one that runs."""
        state, record = self._state, BootRecord.read(self._folder)
        is_target, is_trial = state.sequence == firmware.SEQUENCE, record.kept != self._slot
        if is_trial:
            self._try_out(is_known=state.state in ("installed", "started"), is_target=is_target)
        elif state.state in ("installed", "started") and is_target:
            self._save("healthy")  # a reset between the confirmation and its record
        elif state.state == "started":
            BootRecord(self._slot).write(
                self._folder
            )  # also where the boot loader could not record the end of the trial
            self._end_try(state.reason or "restarted")
        elif state.state in ("downloading", "verified", "installed") and state.sequence <= firmware.SEQUENCE:
            self._save("")  # a newer version was installed by hand

    def _try_out(self, *, is_known: bool, is_target: bool) -> None:
        """Keep the running version once it has delivered a reading of its own; else go back."""
        self._state.reason = ""
        if is_known:
            self._save("started")
        if "PUBLIC KEY" not in firmware.MAKER_KEYS:
            self._state.reason = "no-key"  # it could never be updated again
        elif is_known and not is_target:
            self._state.reason = "wrong-sequence"  # kept, it would be offered again and again
        elif not self._spool.delivered.wait(self._trial_s):
            self._state.reason = "not-healthy"
        if self._state.reason:
            log("going back to the version before")
            if is_known:
                self._save("started")
            BootRecord(1 - self._slot).write(self._folder)
            os._exit(EXIT_RESTART)
        BootRecord(self._slot).write(self._folder)
        log("the new version is healthy")
        if is_known:
            self._save("healthy")

    # --- steps --------------------------------------------------------------------------------------------------

    def _step(self) -> float:
        """Do what is due; return the seconds to wait."""
        state = self._state
        if state.state != state.reported and state.state not in ("", "started"):
            self._client.report(state.version, state.state, state.reason, state.sha256)
            state.reported = state.state
            self._save(state.state)
        elif state.state == "downloading":
            self._download()
        elif state.state == "verified":
            self._save("installed")
        elif state.state == "installed":
            BootRecord(self._slot, 1 - self._slot).write(self._folder)
            self._save("started")  # behind the mark of the boot loader: a reset in between only repeats the mark
            log("starting the new version")
            os._exit(EXIT_RESTART)
        elif time.monotonic() >= self._look_at:
            self._look()
        else:
            return min(1.0, self._look_at - time.monotonic())
        return 0.0

    def _look(self) -> None:
        """Look for a later version at the gateway, and verify its manifest."""
        try:
            found = json.loads(self._client.get("/artefacts", {}, 4 << 20))["artefacts"]
            ours = [
                (each["sequence"], each["version"])
                for each in found
                if (each["name"], each["kind"]) == (firmware.NAME, "firmware")
                and VERSION.fullmatch(each["version"])
                and firmware.BOARD in each.get("boards", [firmware.BOARD])
                and (not each.get("from_versions") or firmware.VERSION in each["from_versions"])
            ]
            sequence, version = max(ours, default=(0, ""))
            if sequence <= firmware.SEQUENCE:
                self._look_later()
                return
            envelope = self._client.get(f"/artefacts/{firmware.NAME}/{version}/manifest", {}, ENVELOPE_BYTES_MAX)
        except (GoneError, ValueError, KeyError, TypeError) as error:
            log(f"update: the list or the manifest cannot be read: {error!r}")
            self._look_later()
            return
        self._take_manifest(version, envelope)

    def _take_manifest(self, version: str, envelope: bytes) -> None:
        digest, state = hashlib.sha256(envelope).hexdigest(), self._state
        tries = state.tries if digest == state.envelope else 0
        if digest == state.envelope and state.state == "rolled-back" and tries >= TRIES_MAX:
            self._look_later()  # the same as was refused
            return
        try:
            manifest = open_manifest(envelope, firmware.MAKER_KEYS, self._place, self._clock.now())
            if manifest.version != version:
                raise Refused("forged")  # noqa: TRY301 - ended with the others
        except Refused as why:
            if why.reason == "not-yet-valid":
                log("a new version is not valid yet")
                self._look_later()
                return
            self._state = StoredUpdate(version=version, envelope=digest, tries=tries)
            raise
        size, sha256, sequence = manifest.size, manifest.sha256, manifest.sequence
        self._state = StoredUpdate(
            version=version, envelope=digest, tries=tries, sequence=sequence, size=size, sha256=sha256
        )
        log("a new version: downloading")
        self._save("downloading")

    def _download(self) -> None:
        """Fetch the next part of the image; verify the whole one."""
        state = self._state
        if state.done >= state.size:
            self._verify_image()
            return
        stop = min(state.done + PART_BYTES, state.size)
        fields = {"Range": f"bytes={state.done}-{stop - 1}", "If-Range": f'"{state.sha256}"'}
        try:
            content = self._client.get(
                f"/artefacts/{firmware.NAME}/{state.version}/image", fields, PART_BYTES, status=206
            )
        except GoneError:
            log("the new version is not offered any more")
            self._save("")
            self._look_later()
            return
        if len(content) != stop - state.done:
            raise Refused("truncated")
        with open(self._image, "r+b" if state.done else "wb") as file:
            file.seek(state.done)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        state.done = stop
        self._save("downloading")

    def _verify_image(self) -> None:
        """Read the stored image once more: so its disk is verified too."""
        digest = hashlib.sha256()
        with open(self._image, "rb") as file:
            while content := file.read(1 << 20):
                digest.update(content)
        if digest.hexdigest() != self._state.sha256:
            raise Refused("forged")
        log("the new version is verified")
        self._save("verified")
