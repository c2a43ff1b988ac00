"""Raspberry Pi Pico W that publishes its own temperature and keeps readings while its gateway is unreachable.

Every reading gets a number and stays in a ring buffer until the gateway's PUBACK, which means that it is on disk there.
With SPOOL it is in flash too, so a reset does not lose it. Copy main.py, mqtt_client.py, spool.py and config.py to the
board. On a PC: ``micropython main.py GATEWAY=127.0.0.1 PORT=1883``.
Commands (JSON, to COMMAND_ADDRESS): ``{"interval_ms": 500}`` sets the interval between readings, ``{"stop": true}``
ends the program once all readings are acknowledged. Each gets an answer at ANSWER_ADDRESS.
"""

import binascii
import gc
import json
import os
import sys
import time

import config
from mqtt_client import GatewayClient, connect_packet, http_date, ticks_add, ticks_diff, ticks_ms
from spool import FlashSpool

try:
    import machine
    import network
except ImportError:  # a PC: MicroPython's unix port, or CPython
    machine = network = None

try:
    import esp32
except ImportError:
    esp32 = None

try:
    import boot_loader
except ImportError:  # this program is not updated
    boot_loader = None

RECONNECT_MS_MIN, RECONNECT_MS_MAX = 250, 8000
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 10, 86400000
READING_IDS, STATUS_ID, ANSWER_ID, ANSWER_IDS = 65000, 65535, 65100, 100  # packet ids 1..65000 are readings
CLOCK_ASK_S = 3600  # between two questions for the time
EPOCH_OFFSET_S = 946684800 if time.gmtime(0)[0] == 2000 else 0  # some boards count from the year 2000
CLOCK_SET_AFTER = 1700000000  # an earlier time means that the clock was never set


class ReadingRing:
    """Unacknowledged readings, oldest first: [packet id, payload, times sent]. When full, it drops the oldest."""

    def __init__(self, capacity):
        self._capacity = capacity
        self._items = []
        self._next = 0  # first item not sent on this connection
        self.dropped = 0

    def __len__(self):
        return len(self._items)

    def add(self, packet_id, payload):
        if len(self._items) == self._capacity:
            self._items.pop(0)
            self._next = max(0, self._next - 1)
            self.dropped += 1
        self._items.append([packet_id, payload, 0])

    def send(self, window):
        """Return the next item to send; None if the window is full or all items are sent."""
        if self._next >= len(self._items) or self._next >= window:
            return None
        item = self._items[self._next]
        self._next += 1
        item[2] += 1
        return item

    def acknowledge(self, packet_id):
        """Remove an acknowledged item and return it; None if it is unknown."""
        for index in range(self._next):
            if self._items[index][0] == packet_id:
                self._next -= 1
                return self._items.pop(index)
        return None

    def oldest(self):
        """Return the packet id of the oldest item."""
        return self._items[0][0]

    def rewind(self):
        """Send all items again, in order, after a lost connection."""
        self._next = 0


class Sensors:
    """Sensors of the board: temperature and free memory. On a PC: load."""

    def __init__(self):
        self._adc = machine.ADC(4) if machine and not esp32 and hasattr(machine, "ADC") else None

    def read(self):
        values = {"uptime_s": round(ticks_ms() / 1000, 3)}
        if hasattr(gc, "mem_free"):
            values["free_heap_bytes"] = gc.mem_free()
        if self._adc:
            volts = self._adc.read_u16() * 3.3 / 65535
            values["temperature_celsius"] = round(27 - (volts - 0.706) / 0.001721, 2)  # RP2040 datasheet, 4.9.5
        elif hasattr(esp32, "mcu_temperature"):  # ESP32-S2 and later
            values["temperature_celsius"] = esp32.mcu_temperature()
        elif hasattr(esp32, "raw_temperature"):
            values["temperature_celsius"] = round((esp32.raw_temperature() - 32) / 1.8, 1)
        elif not machine:
            with open("/proc/loadavg") as file:
                values["load_1m"] = float(file.read().split()[0])
        return values


class PicoDevice:
    def __init__(self, settings):
        self.settings = settings
        self.sensors = Sensors()
        self.ring = ReadingRing(settings["RING"])
        self.client = GatewayClient(self.on_ack, self.on_message, self.feed)
        self.watchdog = machine.WDT(timeout=8000) if machine and hasattr(machine, "WDT") else None
        self.interval_ms = settings["INTERVAL_MS"]
        self.boot = binascii.hexlify(os.urandom(4)).decode()
        self.seq = 0
        self.spool = FlashSpool(settings["SPOOL"]) if settings["SPOOL"] else None
        if self.spool:
            self.seq = self.spool.next
            for number, content in self.spool.readings:
                self.ring.add(number % READING_IDS + 1, content)
            self.spool.readings = None
        self.measured = 0
        self.answers = 0
        self.clock_at = self.clock_ticks = self.clock_due = 0
        self.acknowledged = 0
        self.delivered = False  # a reading of this start was acknowledged: the sign of health of a new version
        self.resent = 0
        self.stopping = False
        self.journal = open(settings["JOURNAL"], "w") if settings["JOURNAL"] else None
        self.updater = None
        if boot_loader and boot_loader.SLOT is not None:
            from update import BoardUpdater

            self.updater = BoardUpdater(self.client, settings, self.time_s, self.feed)
        self.note({"device": settings["DEVICE"], "address": settings["ADDRESS"], "protocol": "mqtt", "kind": "board"})

    # --- readings ---------------------------------------------------------------------------------------------

    def measure(self):
        reading = {"device": self.settings["DEVICE"], "seq": self.seq, "boot": self.boot}
        now = self.time_s()
        if now > CLOCK_SET_AFTER:
            reading["at"] = now
        reading.update(self.sensors.read())
        content = json.dumps(reading).encode()
        self.ring.add(self.seq % READING_IDS + 1, content)
        if self.spool:
            try:
                self.spool.add(content, self.oldest())
            except OSError as why:
                print("reading", self.seq, "is not in flash, and a reset would lose it:", why)
        self.seq += 1
        self.measured += 1
        if self.settings["COUNT"] and self.measured >= self.settings["COUNT"]:
            self.stopping = True

    def oldest(self):
        """Return the number of the oldest reading that waits."""
        return self.seq - (self.seq - self.ring.oldest() + 1) % READING_IDS

    def time_s(self):
        """Return seconds since 1970: the gateway's time with TIME_URL, else that of the board; 0 if it is unknown."""
        if not self.settings["TIME_URL"]:
            return int(time.time() + EPOCH_OFFSET_S)
        if self.clock_at:  # moved on at each call, as ticks wrap
            passed_s = ticks_diff(ticks_ms(), self.clock_ticks) // 1000
            self.clock_at += passed_s
            self.clock_ticks = ticks_add(self.clock_ticks, passed_s * 1000)
        return self.clock_at

    def ask_time(self):
        """Ask the gateway for the time, at most once an hour."""
        url = self.settings["TIME_URL"]
        if not url or (self.clock_at and self.time_s() < self.clock_due):
            return
        try:
            self.clock_at, self.clock_ticks = http_date(url), ticks_ms()
            self.clock_due = self.clock_at + CLOCK_ASK_S
        except (OSError, ValueError) as why:
            print("no time from", url, why)
        self.feed()

    def on_ack(self, packet_id):
        item = self.ring.acknowledge(packet_id)
        if item:
            self.acknowledged += 1
            reading = json.loads(item[1])
            self.delivered = self.delivered or reading.get("boot") == self.boot
            self.note({"acked": reading["seq"], "sends": item[2]})
        elif self.updater:
            self.updater.on_ack(packet_id)

    def on_message(self, address, payload):
        """Obey a command, then answer it; the client acknowledges it when this returns."""
        if self.updater and self.updater.on_message(address, payload):
            return
        answer = {}
        error = self.obey(payload, answer)
        if error:
            print("invalid command:", error, payload)
            answer.update({"status": 400, "error": error})
        else:
            answer.update({"status": 200, "interval_ms": self.interval_ms})
            self.note({"event": "command", "at": time.time(), "detail": str(payload)})
        self.answers = (self.answers + 1) % ANSWER_IDS
        packet_id = ANSWER_ID + self.answers
        self.client.publish(self.settings["ANSWER_ADDRESS"], json.dumps(answer).encode(), packet_id)

    def obey(self, payload, answer):
        """Obey a command; return what is wrong with it, or None. The same command twice has the effect of one."""
        try:
            command = json.loads(payload)
            interval_ms = command.get("interval_ms", self.interval_ms)
        except (ValueError, AttributeError):
            return "not a JSON object"
        if "id" in command:
            answer["id"] = command["id"]
        if "interval_ms" not in command and "stop" not in command:
            return "unknown command"
        if type(interval_ms) is not int or not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
            return "interval_ms has to be 10 to 86400000"
        self.interval_ms = interval_ms
        self.stopping = self.stopping or command.get("stop") is True
        return None

    def feed(self):
        """Feed the watchdog, which resets the board after 8 s without this call."""
        if self.watchdog:
            self.watchdog.feed()

    def note(self, record):
        """Write one journal line for tests; boards have no journal."""
        if self.journal:
            self.journal.write(json.dumps(record) + "\n")
            self.journal.flush()

    # --- connection -------------------------------------------------------------------------------------------

    def connect(self):
        settings = self.settings
        bring_up_wifi(settings)
        self.feed()
        self.ask_time()
        will = (settings["STATUS_ADDRESS"], b"offline")
        packet = connect_packet(
            settings["DEVICE"], settings["KEEP_ALIVE_S"], will, settings["USERNAME"], settings["PASSWORD"]
        )
        self.client.connect(
            settings["GATEWAY"],
            settings["PORT"],
            packet,
            settings["KEEP_ALIVE_S"],
            settings["TLS_CA_FILE"],
            settings["TLS_CERTIFICATE_FILE"],
            settings["TLS_KEY_FILE"],
        )
        self.client.subscribe(settings["COMMAND_ADDRESS"], STATUS_ID)
        self.client.publish(settings["STATUS_ADDRESS"], b"online", STATUS_ID, retain=True)
        self.ring.rewind()
        if self.updater:
            self.updater.connected()
        self.note({"event": "connected", "at": time.time(), "detail": settings["GATEWAY"]})

    def flush(self):
        item = self.ring.send(self.settings["WINDOW"])
        while item:
            self.resent += item[2] > 1
            self.client.publish(self.settings["ADDRESS"], item[1], item[0], dup=item[2] > 1)
            item = self.ring.send(self.settings["WINDOW"])

    def run(self):
        """Measure, send and reconnect. Returns after a request to stop, once all readings are acknowledged."""
        due, retry_at, delay_ms, seen = ticks_ms(), ticks_ms(), RECONNECT_MS_MIN, self.acknowledged
        interval_ms = self.interval_ms
        while not (self.stopping and not len(self.ring)):
            self.feed()
            now = ticks_ms()
            if self.interval_ms != interval_ms:  # a command
                interval_ms = self.interval_ms
                due = ticks_add(now, interval_ms)
            if not self.stopping and ticks_diff(now, due) >= 0:
                self.measure()
                late = ticks_diff(now, due) > self.interval_ms
                due = ticks_add(now if late else due, self.interval_ms)
            try:
                if self.client.connected:
                    if self.acknowledged != seen:
                        delay_ms = RECONNECT_MS_MIN
                    self.flush()
                    if self.updater and not self.stopping:
                        self.updater.step(True, self.delivered)
                    self.client.service(max(0, min(ticks_diff(due, ticks_ms()), 50)) if not self.stopping else 50)
                elif ticks_diff(now, retry_at) >= 0:
                    self.connect()
                else:
                    if self.updater:
                        self.updater.step(False, self.delivered)
                    time.sleep(0.01)
            except OSError as why:
                print("connection:", why)
                self.note({"event": "disconnected", "at": time.time(), "detail": str(why)})
                self.client.close()
                # Jitter, so that a thousand devices do not return at once: half of the delay to all of it.
                half, chance = delay_ms // 2, int(binascii.hexlify(os.urandom(2)), 16)
                retry_at = ticks_add(ticks_ms(), half + chance % (half + 1))
                delay_ms = min(delay_ms * 2, RECONNECT_MS_MAX)
                seen = self.acknowledged
        if self.client.connected:
            try:
                self.client.publish(self.settings["STATUS_ADDRESS"], b"offline", STATUS_ID, retain=True)
            except OSError as why:
                print("connection:", why)
        self.client.disconnect()

    def finish(self):
        if self.spool:
            self.spool.close()
        self.note(
            {
                "end": {
                    "published": self.measured,
                    "acknowledged": self.acknowledged,
                    "unacknowledged": len(self.ring),
                    "dropped": self.ring.dropped,
                    "resent": self.resent,
                }
            }
        )
        print("published", self.measured, "acknowledged", self.acknowledged, "left", len(self.ring))


def bring_up_wifi(settings):
    """Join the Wi-Fi and set the clock; does nothing on a PC. Raises OSError if the Wi-Fi does not connect."""
    if network is None or not settings["WIFI_SSID"]:
        return
    wlan = network.WLAN(network.STA_IF)
    if wlan.isconnected():
        return
    wlan.active(True)
    wlan.connect(settings["WIFI_SSID"], settings["WIFI_PASSWORD"])
    deadline = ticks_add(ticks_ms(), 6000)  # below the watchdog's 8 s
    while not wlan.isconnected():
        if ticks_diff(deadline, ticks_ms()) <= 0:
            raise OSError("no Wi-Fi")
        time.sleep(0.1)
    if settings["NTP_HOST"]:
        import ntptime

        ntptime.host = settings["NTP_HOST"]
        try:
            ntptime.settime()
        except OSError as why:
            print("clock not set:", why)


def settings_from(arguments):
    """Return config.py with KEY=VALUE arguments applied; numbers stay numbers."""
    settings = {name: getattr(config, name) for name in dir(config) if name[0].isupper()}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or name not in settings:
            raise ValueError("unknown setting: " + argument)
        settings[name] = int(value) if isinstance(settings[name], int) else value
    return settings


def main(arguments):
    try:
        device = PicoDevice(settings_from(arguments))
    except OSError as why:
        print("the spool cannot be used, set SPOOL to another folder:", settings_from(arguments)["SPOOL"], why)
        sys.exit(2)
    try:
        device.run()
    except KeyboardInterrupt:  # deliver the remaining readings; a second interrupt ends the program
        device.stopping = True
        device.run()
    finally:
        device.finish()


if __name__ == "__main__":
    main(sys.argv[1:] if hasattr(sys, "argv") else [])
