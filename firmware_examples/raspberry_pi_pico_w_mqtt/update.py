"""Update of the program by itself: from the gateway over MQTT into the slot that does not run, with a way back.

docs/how-to/write-a-device-that-updates.md has the states, which every example shares, and
docs/how-to/update-devices-over-mqtt.md the exchange. Nothing here waits.
"""

import binascii
import hashlib
import json
import os

import boot_loader
import firmware
from manifest import RefusedImage, check_version, is_version, open_manifest
from mqtt_client import ticks_add, ticks_diff, ticks_ms

SUBSCRIBE_ID, REQUEST_ID, REPORT_ID = 65300, 65301, 65302  # packet ids
CHUNK_BYTES = 2048
ANSWER_MS, SUBSCRIBE_MS, LATER_MS = 10000, 60000, 30000
TRIES_MAX = 3  # trials of one image; then it is refused until another manifest comes
TRY_AGAIN = ("not-healthy", "restarted", "cannot-install")
RECORD = "update.json"
NOTHING = {
    "state": "", "reported": "", "reason": "", "version": "", "sequence": 0, "size": 0, "sha256": "",
    "envelope": "",  # SHA-256 of the signed manifest
    "tries": 0,
    "own": 0,  # sequence of the program that wrote this
}  # fmt: skip
PLACE = (firmware.NAME, firmware.BOARD, firmware.VERSION, firmware.SEQUENCE)


class BoardUpdater:
    """`step` is called again and again, `connected` after each connect, the `on_` functions for what arrives."""

    def __init__(self, client, settings, now_s, feed):
        """`now_s` returns the time, 0 if it is unknown; `feed` feeds the watchdog."""
        self._client, self._now_s, self._feed = client, now_s, feed
        self._prefix = "$artefacts/" + settings["DEVICE"] + "/"
        self._look_ms, self._trial_ms = settings["UPDATE_S"] * 1000, settings["TRIAL_S"] * 1000
        self._image = f"slot{1 - boot_loader.SLOT}.image"
        self._is_subscribed, self._is_waiting = False, False
        self._due = ticks_ms()  # of the next look, or of the next try
        self._asked = ticks_ms()
        self._is_trial = False
        self._state = dict(NOTHING)
        try:
            with open(RECORD) as file:
                self._state.update(json.load(file))
        except OSError:
            pass  # the first start
        if self._state["own"] != firmware.SEQUENCE and self._state["state"] == "rolled-back":
            self._state["tries"] = 0  # what another version has refused, this one may take
        print("firmware:", firmware.NAME, firmware.VERSION)
        self._judge_start()

    # --- state ------------------------------------------------------------------------------------------------

    def _save(self, state):
        self._state["state"], self._state["own"] = state, firmware.SEQUENCE
        boot_loader.write_file(RECORD, json.dumps(self._state))

    def _look_later(self):
        chance = int(binascii.hexlify(os.urandom(2)), 16)
        self._due = ticks_add(ticks_ms(), self._look_ms // 2 + self._look_ms // 2 * chance // 65536)

    def _end_try(self, reason):
        """Stay with the version that runs; the same manifest is tried again a few times, unless that cannot help."""
        state = self._state
        helps = state["state"] == "downloading" or reason in TRY_AGAIN
        state["tries"] = state["tries"] + 1 if helps else TRIES_MAX
        state["reported"], state["reason"] = "", reason
        print("the new version is refused, or was rolled back:", reason)
        _remove(self._image)
        self._save("rolled-back")
        self._look_later()

    # --- the trial --------------------------------------------------------------------------------------------

    def _judge_start(self):
        """Find out what became of a version that was installed before this start."""
        state, kept = self._state, boot_loader.read_boot()[0]
        is_installed, is_target = state["state"] in ("installed", "started"), state["sequence"] == firmware.SEQUENCE
        if kept != boot_loader.SLOT:
            self._begin_trial(is_installed, is_target)
        elif is_installed and is_target:
            self._save("healthy")  # a reset between the confirmation and its record
        elif state["state"] == "started":
            boot_loader.write_boot(kept)  # also where the boot loader could not record the end of the trial
            self._end_try(state["reason"] or "restarted")
        elif state["state"] in ("downloading", "verified", "installed") and state["sequence"] <= firmware.SEQUENCE:
            self._save("")  # a newer version was installed by hand

    def _begin_trial(self, is_known, is_target):
        self._is_trial, self._is_known = True, is_known
        self._trial_end = ticks_add(ticks_ms(), self._trial_ms)
        self._state["reason"] = ""
        if is_known:
            self._save("started")
        if "PUBLIC KEY" not in firmware.MAKER_KEYS:
            self._go_back("no-key")  # it could never be updated again
        elif is_known and not is_target:
            self._go_back("wrong-sequence")  # kept, it would be offered again and again

    def _go_back(self, reason):
        print("going back to the version before")
        self._state["reason"] = reason
        if self._is_known:
            self._save("started")
        boot_loader.write_boot(1 - boot_loader.SLOT)
        boot_loader.restart()

    def _judge_trial(self, is_delivered):
        """Keep the running version once it has delivered a reading of its own; else go back."""
        if is_delivered:
            boot_loader.write_boot(boot_loader.SLOT)
            self._is_trial = False
            print("the new version is healthy")
            if self._is_known:
                self._save("healthy")
        elif ticks_diff(self._trial_end, ticks_ms()) <= 0:
            self._go_back("not-healthy")

    # --- steps ------------------------------------------------------------------------------------------------

    def connected(self):
        """Begin with a connection."""
        self._is_subscribed = self._is_waiting = False
        self._asked = ticks_add(ticks_ms(), -SUBSCRIBE_MS)

    def step(self, is_connected, is_delivered):
        """Do what is due. `is_delivered`: a reading of this start was acknowledged. Raises OSError."""
        if self._is_trial:
            self._judge_trial(is_delivered)
        elif is_connected and is_delivered:
            try:
                self._step_connected()
            except RefusedImage as why:
                self._end_try(why.args[0])

    def _step_connected(self):
        state, passed_ms = self._state["state"], ticks_diff(ticks_ms(), self._asked)
        if not self._is_subscribed:
            if passed_ms >= SUBSCRIBE_MS:
                self._asked = ticks_ms()
                self._is_subscribed = self._client.try_subscribe(self._prefix + "answer/#", SUBSCRIBE_ID)
            return
        if self._is_waiting and passed_ms < ANSWER_MS:
            return
        if state != self._state["reported"] and state not in ("", "started"):
            fields = {name: self._state[name] for name in ("version", "state", "reason", "sha256")}
            fields["artefact"] = firmware.NAME
            self._send("report", json.dumps(fields), REPORT_ID)
        elif state == "verified":
            self._install()
            self._save("installed")
        elif state == "installed":
            boot_loader.write_boot(boot_loader.SLOT, 1 - boot_loader.SLOT)
            self._save("started")  # behind the mark of the boot loader: a reset in between only repeats the mark
            print("starting the new version")
            boot_loader.restart()
        elif ticks_diff(self._due, ticks_ms()) > 0:
            return
        elif state == "downloading":
            self._fetch_part()
        else:
            self._send("get/offer", json.dumps({"board": firmware.BOARD, "version": firmware.VERSION}), REQUEST_ID)

    def _send(self, topic, text, packet_id):
        self._is_waiting, self._asked = True, ticks_ms()
        self._client.publish(self._prefix + topic, text.encode(), packet_id)

    def on_ack(self, packet_id):
        """Take note that the gateway has a report."""
        if packet_id == REPORT_ID and self._is_waiting:
            self._is_waiting = False
            self._state["reported"] = self._state["state"]
            self._save(self._state["state"])

    def on_message(self, address, payload):
        """Take an answer; return whether it is one."""
        if not address.startswith(self._prefix + "answer/"):
            return False
        levels = address[len(self._prefix) :].split("/")[1:]
        try:
            if levels[0] == "offer":
                self._take_offer(json.loads(payload)["artefact"])
            elif levels[0] == "chunk":
                self._take_part(levels[1], int(levels[2]), payload)
            elif levels[0] == "refused":
                self._take_refusal(levels[1], json.loads(payload))
        except RefusedImage as why:
            self._end_try(why.args[0])
        except (ValueError, KeyError, TypeError) as why:
            print("update: an answer cannot be read:", repr(why))
            self._look_later()
        return True

    def _take_refusal(self, what, answer):
        self._is_waiting = False
        print("update:", answer["status"], answer.get("detail", ""))
        if answer["status"] == 503:
            self._due = ticks_add(ticks_ms(), LATER_MS)
            return
        self._look_later()
        if what == "chunk" and self._state["state"] == "downloading":
            if answer["status"] == 416:
                raise RefusedImage("truncated")
            self._save("")  # it is not offered any more

    def _take_offer(self, offer):
        """Verify the manifest of an offer."""
        self._is_waiting = False
        if offer is None or offer["name"] != firmware.NAME or offer["kind"] != "firmware":
            self._look_later()
            return
        version, state = offer["version"], self._state
        if not is_version(version) or offer["sequence"] <= firmware.SEQUENCE:
            self._look_later()
            return
        envelope = binascii.a2b_base64(offer["manifest"]) if offer["manifest"] else bytes(1025)  # too large for us
        digest = binascii.hexlify(hashlib.sha256(envelope).digest()).decode()
        tries = state["tries"] if digest == state["envelope"] else 0
        if digest == state["envelope"] and state["state"] == "rolled-back" and tries >= TRIES_MAX:
            self._look_later()  # the same as was refused
            return
        try:
            found = open_manifest(envelope, firmware.MAKER_KEYS, PLACE, self._now_s(), self._feed)
            check_version(found[0], version)
        except RefusedImage as why:
            if why.args[0] == "not-yet-valid":
                print("a new version is not valid yet")
                self._look_later()
                return
            self._state = dict(NOTHING)
            self._state.update({"version": version, "envelope": digest, "tries": tries})
            raise
        if found[3] != state["sha256"] or state["state"] != "downloading":
            _remove(self._image)
        self._state = dict(NOTHING)
        self._state.update({"envelope": digest, "tries": tries})
        self._state["version"], self._state["sequence"], self._state["size"], self._state["sha256"] = found
        print("a new version: downloading")
        self._due = ticks_ms()
        self._save("downloading")

    def _done(self):
        """Return the number of bytes of the image in flash: after a power cut the file ends with what was written."""
        try:
            return os.stat(self._image)[6]
        except OSError:
            return 0

    def _fetch_part(self):
        """Request the next part of the image; verify the whole one."""
        done, size = self._done(), self._state["size"]
        if done >= size:
            self._verify_image()
            return
        self._send(f"get/chunk/{self._state['sha256']}/{done}/{min(CHUNK_BYTES, size - done)}", "", REQUEST_ID)

    def _take_part(self, sha256, offset, content):
        if self._state["state"] != "downloading" or sha256 != self._state["sha256"] or offset != self._done():
            return  # of a request that was repeated
        self._is_waiting = False
        if not content or offset + len(content) > self._state["size"]:
            raise RefusedImage("truncated")
        try:
            with open(self._image, "ab") as file:
                file.write(content)
                file.flush()
                if hasattr(os, "fsync"):
                    os.fsync(file.fileno())
        except OSError:
            raise RefusedImage("cannot-install") from None

    def _verify_image(self):
        """Read the stored image once more: so its flash is verified too."""
        digest = hashlib.sha256()
        with open(self._image, "rb") as file:
            while True:
                content = file.read(1024)
                if not content:
                    break
                digest.update(content)
                self._feed()
        if binascii.hexlify(digest.digest()).decode() != self._state["sha256"]:
            raise RefusedImage("forged")
        print("the new version is verified")
        self._save("verified")

    def _install(self):
        """Write the files of the image into the slot."""
        try:
            unpack(self._image, self._image.split(".")[0], self._feed)
        except (OSError, ValueError) as why:
            print("update:", repr(why))
            raise RefusedImage("cannot-install") from None
        _remove(self._image)


def unpack(path, folder, feed):
    """Write the files of an image into a folder, in place of what is there. Raises OSError and ValueError."""
    try:
        os.mkdir(folder)
    except OSError:
        for name in os.listdir(folder):  # of an older version
            os.remove(folder + "/" + name)
    with open(path, "rb") as image:
        while True:
            line = image.readline()
            if not line:
                return
            name, size = line.decode().split()
            if "/" in name:
                raise ValueError(name)
            feed()
            with open(folder + "/" + name, "wb") as file:
                left = int(size)
                while left:
                    content = image.read(min(left, 1024))
                    if not content:
                        raise ValueError(name)
                    file.write(content)
                    left -= len(content)


def _remove(name):
    try:
        os.remove(name)
    except OSError:
        pass  # it is not there
