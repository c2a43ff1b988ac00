"""A small MQTT 3.1.1 client for MicroPython: QoS 1 both ways, last will, persistent session, never blocks for long.

It knows nothing of readings. `service` must be called often: it reads, answers and keeps the connection alive.
Everything that is wrong with the connection raises OSError; close it and connect again.
Runs on MicroPython (boards and the unix port) and on CPython.
"""

import errno
import select
import socket
import struct
import time

try:
    from time import ticks_add, ticks_diff, ticks_ms  # values wrap after some days: calculate only with these functions
except ImportError:  # CPython

    def ticks_ms():
        return int(time.monotonic() * 1000)

    def ticks_add(ticks, delta):
        return ticks + delta

    def ticks_diff(end, start):
        return end - start


CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP = 2, 3, 4, 9, 13
ANSWER_TIMEOUT_MS = 5000
MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
READ_BYTES = 1024
PACKET_BYTES_MAX = 4096  # larger packets from the gateway are refused, because memory is small
NOT_NOW = (errno.EAGAIN, getattr(errno, "EWOULDBLOCK", errno.EAGAIN), errno.EINPROGRESS)


def _is_not_now(error):
    """Tell whether a read or write would have to wait: as a socket says it, or as TLS on a PC does."""
    return error.args[0] in NOT_NOW or type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError")


def _string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("!H", len(data)) + data


def _packet(first, body):
    """Return a packet: fixed header (section 2.2) and body."""
    length, out = len(body), bytearray([first])
    while True:
        digit, length = length & 0x7F, length >> 7
        out.append(digit | 0x80 if length else digit)
        if not length:
            return bytes(out) + body


def connect_packet(client_id, keep_alive_s, will=None, username="", password=""):
    """Return CONNECT (section 3.1) with a persistent session; `will` is (address, payload), QoS 1 and retained."""
    flags = 0
    payload = _string(client_id)
    if will:
        flags |= 0x04 | 0x08 | 0x20
        payload += _string(will[0]) + _string(will[1])
    if username:
        flags |= 0x80
        payload += _string(username)
        if password:
            flags |= 0x40
            payload += _string(password)
    return _packet(0x10, _string("MQTT") + struct.pack("!BBH", 4, flags, keep_alive_s) + payload)


def publish_packet(address, payload, packet_id, dup=False, retain=False):
    """Return PUBLISH (section 3.3) at QoS 1."""
    first = 0x32 | (0x08 if dup else 0) | (0x01 if retain else 0)
    return _packet(first, _string(address) + struct.pack("!H", packet_id) + payload)


def subscribe_packet(address, packet_id):
    """Return SUBSCRIBE (section 3.8) for one address at QoS 1."""
    return _packet(0x82, struct.pack("!H", packet_id) + _string(address) + b"\x01")


def http_date(url):
    """Return the time of an HTTP server, in seconds since 1970, from the field Date. Raises OSError or ValueError."""
    host, _, port = url.split("://")[-1].rstrip("/").partition(":")
    sock = socket.socket()
    try:
        sock.settimeout(2)
        sock.connect(socket.getaddrinfo(host, int(port or 80), 0, socket.SOCK_STREAM)[0][-1])
        sock.send(f"HEAD /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while len(answer) < 2048 and b"\r\n\r\n" not in answer:
            data = sock.recv(512)
            if not data:
                break
            answer += data
    finally:
        sock.close()
    for line in answer.decode().split("\r\n"):
        if line.lower().startswith("date:"):
            day, month, year, clock = line[5:].strip().split(" ")[1:5]
            hour, minute, second = (int(part) for part in clock.split(":"))
            return _seconds(int(year), MONTHS.index(month) // 3 + 1, int(day)) + hour * 3600 + minute * 60 + second
    raise ValueError("no Date")


def _seconds(year, month, day):
    """Return the seconds from 1970 to a day. A year begins in March here, so that a leap day is the last."""
    if month <= 2:
        year, month = year - 1, month + 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 1
    return (days - 719468) * 86400


class PacketParser:
    """Cuts the byte stream into packets: (first byte, body)."""

    def __init__(self):
        self._buffer = b""

    def feed(self, data):
        """Return the packets that `data` completes. Raises OSError for data that is not MQTT."""
        self._buffer += data
        packets = []
        while True:
            packet = self._take()
            if packet is None:
                return packets
            packets.append(packet)

    def _take(self):
        buffer, length = self._buffer, 0
        for index in range(1, 5):
            if len(buffer) <= index:
                return None
            length |= (buffer[index] & 0x7F) << (7 * (index - 1))
            if not buffer[index] & 0x80:
                break
        else:
            raise OSError("malformed remaining length")
        if length > PACKET_BYTES_MAX:
            raise OSError("packet too large")
        end = index + 1 + length
        if len(buffer) < end:
            return None
        self._buffer = buffer[end:]
        return buffer[0], buffer[index + 1 : end]


class GatewayClient:
    """One connection at a time.

    `on_ack(packet_id)` and `on_message(address, payload)` are called by `service`; `on_wait()` again and again while
    an answer is waited for (feed a watchdog there).
    """

    def __init__(self, on_ack, on_message, on_wait):
        self._on_ack = on_ack
        self._on_message = on_message
        self._on_wait = on_wait
        self._sock = None
        self._poll = None

    @property
    def connected(self):
        return self._sock is not None

    def connect(self, host, port, packet, keep_alive_s, tls_ca_file="", tls_certificate_file="", tls_key_file=""):
        """Open the connection and wait for CONNACK. Returns whether the gateway kept our session."""
        self.close()
        address = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)[0][-1]
        sock = socket.socket()
        try:
            sock.settimeout(ANSWER_TIMEOUT_MS / 1000)
            sock.connect(address)
            if tls_ca_file:
                sock = _wrap_tls(sock, host, tls_ca_file, tls_certificate_file, tls_key_file)
            sock.setblocking(False)
            self._poll = select.poll()
            self._poll.register(sock, select.POLLIN)
            self._sock, self._parser, self._answers = sock, PacketParser(), []
            self._keep_alive_ms = keep_alive_s * 1000
            self._pinged = None
            self._write(packet)
            body = self._wait(CONNACK)
        except Exception:
            self._sock = None
            sock.close()
            raise
        if len(body) != 2 or body[1]:
            self.close()
            code = body[1] if len(body) == 2 else 0
            hint = "; `waypost user rotate` at the gateway makes a new password" if code in (4, 5) else ""
            raise OSError(f"the gateway refused us, code {code}{hint}")
        return bool(body[0] & 1)

    def subscribe(self, address, packet_id):
        """Subscribe and wait for SUBACK."""
        if not self.try_subscribe(address, packet_id):
            raise OSError("the gateway refused the subscription")

    def try_subscribe(self, address, packet_id):
        """Subscribe and wait for SUBACK. Returns whether the gateway has granted it."""
        self._write(subscribe_packet(address, packet_id))
        body = self._wait(SUBACK)
        return body[:2] == struct.pack("!H", packet_id) and not body[2] & 0x80

    def publish(self, address, payload, packet_id, dup=False, retain=False):
        """Send at QoS 1. Calls `on_ack` later; if the connection breaks first, send again with `dup`."""
        self._write(publish_packet(address, payload, packet_id, dup, retain))

    def service(self, wait_ms):
        """Read for at most `wait_ms`, run callbacks, answer, and ping if the connection was idle."""
        self._read(wait_ms)
        now = ticks_ms()
        if self._pinged is not None and ticks_diff(now, self._pinged) > ANSWER_TIMEOUT_MS:
            raise OSError("the gateway does not answer")
        if self._pinged is None and ticks_diff(now, self._written) * 2 > self._keep_alive_ms:
            self._write(b"\xc0\x00")
            self._pinged = now

    def disconnect(self):
        """Disconnect cleanly, so that the gateway discards the last will."""
        if self._sock is not None:
            try:
                self._write(b"\xe0\x00")
            except OSError:
                pass
            self.close()

    def close(self):
        """Drop the connection. Idempotent."""
        if self._sock is not None:
            self._poll.unregister(self._sock)
            self._sock.close()
            self._sock = None

    # --- inside -----------------------------------------------------------------------------------------------

    def _wait(self, kind):
        """Return the body of the next packet of this kind, and handle others until then."""
        deadline = ticks_add(ticks_ms(), ANSWER_TIMEOUT_MS)
        while ticks_diff(deadline, ticks_ms()) > 0:
            self._on_wait()
            self._read(200)
            for position, (answer, body) in enumerate(self._answers):
                if answer == kind:
                    del self._answers[position]
                    return body
        raise OSError("no answer")

    def _read(self, wait_ms):
        if not self._poll.poll(wait_ms):
            return
        while True:  # TLS may hold more than one read returns, and then `poll` does not tell
            try:
                data = self._sock.recv(READ_BYTES) if hasattr(self._sock, "recv") else self._sock.read(READ_BYTES)
            except OSError as error:
                if _is_not_now(error):
                    return
                raise
            if data is None:
                return
            if not data:
                raise OSError("the gateway closed the connection")
            for first, body in self._parser.feed(data):
                self._handle(first, body)
            if len(data) < READ_BYTES:
                return

    def _handle(self, first, body):
        kind = first >> 4
        if kind == PUBACK and len(body) >= 2:
            self._on_ack(struct.unpack("!H", body[:2])[0])
        elif kind == PUBLISH:
            self._handle_publish(first, body)
        elif kind == PINGRESP:
            self._pinged = None
        elif kind in (CONNACK, SUBACK):
            self._answers.append((kind, body))
        else:
            raise OSError(f"unexpected packet {kind}")

    def _handle_publish(self, first, body):
        end = 2 + struct.unpack("!H", body[:2])[0]
        address, qos = body[2:end].decode(), (first >> 1) & 3
        if qos:
            packet_id, end = body[end : end + 2], end + 2
        self._on_message(address, body[end:])
        if qos:
            self._write(b"\x40\x02" + packet_id)

    def _write(self, data):
        deadline = ticks_add(ticks_ms(), ANSWER_TIMEOUT_MS)
        while data:
            try:
                sent = self._sock.send(data) if hasattr(self._sock, "send") else self._sock.write(data)
            except OSError as error:
                if not _is_not_now(error):
                    raise
                sent = None
            if sent:
                data = data[sent:]
            elif ticks_diff(deadline, ticks_ms()) > 0:
                self._on_wait()
                time.sleep(0.01)
            else:
                raise OSError("the gateway does not read")
        self._written = ticks_ms()


def _wrap_tls(sock, host, ca_file, certificate_file, key_file):
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cafile=ca_file)
    if certificate_file:
        context.load_cert_chain(certificate_file, key_file or certificate_file)
    return context.wrap_socket(sock, server_hostname=host)
