"""Journal of refused clients: who was refused, from where, why, and the next step.

Clients learn as little as before: an unknown user and a wrong password get the same answer. The journal is for the
operator. Its memory is bounded, and one remote address cannot displace the entries of all others.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from edge.broker.limits import (
    REFUSAL_REMOTE_SHARE,
    REFUSAL_TEXT_CHARACTERS_MAX,
    REFUSAL_TIMES_MAX,
    REFUSALS_KEPT_MAX,
)
from edge.output.text import line, word


class RefusalCause(enum.Enum):
    """Reason why a client or one of its operations was refused."""

    UNKNOWN_USER = "unknown-user"
    """No user has this name."""
    WRONG_PASSWORD = "wrong-password"  # noqa: S105 - a reason
    """The user exists, and the password is wrong or has expired."""
    NO_CREDENTIALS = "no-credentials"
    """The client gave no user name or no password."""
    TOKEN = "token"  # noqa: S105 - a reason
    """The token is not valid."""
    CERTIFICATE = "certificate"
    """The client certificate is missing, not valid or revoked."""
    TLS = "tls"
    """The TLS handshake failed, for example because the client does not trust the gateway's certificate."""
    THROTTLED = "throttled"
    """Too many failed logins from this address: further ones are refused without a check."""
    BUSY = "busy"
    """Too many logins waited for the verification of their passwords."""
    NOT_ADMITTED = "not-admitted"
    """The device API has no such device, or it is disabled."""
    NOT_ALLOWED_TO_SEND = "not-allowed-to-send"
    """The user has no right to send to the address."""
    NOT_ALLOWED_TO_RECEIVE = "not-allowed-to-receive"
    """The user has no right to receive from the address."""
    TOO_MANY_CONNECTIONS = "too-many-connections"
    """A limit on the number of connections is reached: of the user, of the remote address or of the gateway."""
    TOO_MANY_SESSIONS = "too-many-sessions"
    """The limit on the number of sessions is reached: of the user or of the gateway."""
    CLIENT_ID_TAKEN = "client-id-taken"
    """The client identifier belongs to another user, or a connection holds it exclusively."""
    PROTOCOL_ERROR = "protocol-error"
    """The client violated its protocol."""
    WRONG_PORT = "wrong-port"
    """The client speaks another protocol than the listener."""


class RefusalKey(NamedTuple):
    """Identity of an entry."""

    remote: str
    """Host of the client; empty when it is not known."""
    user: str
    """User name as the client gave it; empty: none."""
    client: str
    """MQTT client identifier or AMQP container id; empty when it is not known yet."""
    cause: RefusalCause


class RefusedClient:
    """Entry of the journal: refusals of one client for one reason."""

    __slots__ = ("address", "count", "detail", "first_at", "key", "number", "times")

    def __init__(self, key: RefusalKey, at: float) -> None:
        self.key = key
        self.number = 0
        """Number of the last refusal: numbers rise over all entries."""
        self.count = 0
        """Refusals since the entry exists."""
        self.first_at = at
        """First refusal, UTC seconds."""
        self.times: tuple[float, ...] = ()
        """The latest refusals, UTC seconds, the oldest first; at most `REFUSAL_TIMES_MAX`."""
        self.address = ""
        """Address of the last refused message or subscription; empty for other reasons."""
        self.detail = ""
        """Further words on the last refusal, such as the violation of the protocol."""

    @property
    def last_at(self) -> float:
        """Last refusal, UTC seconds."""
        return self.times[-1]

    def since(self, at: float) -> int:
        """Return the number of refusals since `at` (UTC seconds), at most `REFUSAL_TIMES_MAX`."""
        return sum(each >= at for each in self.times)


class RefusalJournal:
    """Latest refusals of one broker, and counters by reason. Use it inside the loop only."""

    def __init__(self, utc_s: Callable[[], float] = time.time) -> None:
        self.counts: dict[str, int] = {}
        """Refusals since the start, by reason."""
        self._utc_s = utc_s
        self._number = 0
        self._entries: dict[RefusalKey, RefusedClient] = {}
        """Least recently refused first."""
        self._by_remote: dict[str, dict[RefusalKey, None]] = {}
        """Entries of each remote address, in the same order."""

    def add(
        self,
        cause: RefusalCause,
        remote: str = "",
        *,
        user: str = "",
        client: str = "",
        address: str = "",
        detail: str = "",
    ) -> None:
        """Record a refusal. Texts of the client are cut at `REFUSAL_TEXT_CHARACTERS_MAX`."""
        self.counts[cause.value] = self.counts.get(cause.value, 0) + 1
        self._number += 1
        now = self._utc_s()
        key = RefusalKey(remote, _cut(user), _cut(client), cause)
        entry = self._take(key)
        if entry is None:
            entry = RefusedClient(key, now)
            self._make_room(remote)
        self._entries[key] = entry
        self._by_remote.setdefault(remote, {})[key] = None
        entry.number = self._number
        entry.count += 1
        entry.times = (*entry.times[1 - REFUSAL_TIMES_MAX :], now)
        entry.address, entry.detail = _cut(address), _cut(detail)

    def __len__(self) -> int:
        return len(self._entries)

    def latest(self) -> Iterator[RefusedClient]:
        """Yield the entries, the latest refusal first."""
        return reversed(self._entries.values())

    # --- inside -------------------------------------------------------------------------------------------------

    def _take(self, key: RefusalKey) -> RefusedClient | None:
        """Remove and return the entry of this key; None without one."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            of_remote = self._by_remote[key.remote]
            del of_remote[key]
            if not of_remote:
                del self._by_remote[key.remote]
        return entry

    def _make_room(self, remote: str) -> None:
        """Drop the oldest entry: of this remote address if it has its share already."""
        of_remote: Mapping[RefusalKey, None] = self._by_remote.get(remote, {})
        if len(of_remote) >= REFUSALS_KEPT_MAX // REFUSAL_REMOTE_SHARE:
            self._take(next(iter(of_remote)))
        elif len(self._entries) >= REFUSALS_KEPT_MAX:
            self._take(next(iter(self._entries)))


def _cut(text: str) -> str:
    return text[:REFUSAL_TEXT_CHARACTERS_MAX]


# --- for people ---------------------------------------------------------------------------------------------------

_WHAT: Final[Mapping[RefusalCause, str]] = {
    RefusalCause.UNKNOWN_USER: "there is no user {user}",
    RefusalCause.WRONG_PASSWORD: "the password of user {user} is wrong or has expired",
    RefusalCause.NO_CREDENTIALS: "it gives no user name and password, and this gateway requires both",
    RefusalCause.TOKEN: "its token is not valid",
    RefusalCause.CERTIFICATE: "its certificate is refused",
    RefusalCause.TLS: "the TLS handshake failed",
    RefusalCause.THROTTLED: "too many failed logins from {remote}: it has to wait, even with the right password",
    RefusalCause.BUSY: "too many logins wait for the verification of their passwords",
    RefusalCause.NOT_ADMITTED: "the device API does not admit it",
    RefusalCause.NOT_ALLOWED_TO_SEND: "user {user} has no right to send to {address}",
    RefusalCause.NOT_ALLOWED_TO_RECEIVE: "user {user} has no right to receive from {address}",
    RefusalCause.TOO_MANY_CONNECTIONS: "the connection limit of its user, its address or the gateway is reached",
    RefusalCause.TOO_MANY_SESSIONS: "the session limit of its user or the gateway is reached",
    RefusalCause.CLIENT_ID_TAKEN: "the client identifier {client} belongs to another user or connection",
    RefusalCause.PROTOCOL_ERROR: "it violated its protocol",
    RefusalCause.WRONG_PORT: "it speaks another protocol than the listener",
}
_NEXT_STEPS: Final[Mapping[RefusalCause, str]] = {
    RefusalCause.UNKNOWN_USER: "add the user: waypost user add {user_word}; or correct the name in the device",
    RefusalCause.WRONG_PASSWORD: ("give it a new password: waypost user rotate {user_word}; then set it in the device"),
    RefusalCause.NO_CREDENTIALS: "add a user: waypost user add NAME; then set its name and password in the device",
    RefusalCause.TOKEN: "get a new token from the issuer; compare the clocks of issuer and gateway",
    RefusalCause.CERTIFICATE: "give it a certificate of the configured client authority that is valid and not revoked",
    RefusalCause.TLS: (
        "let the device trust the authority of the gateway's certificate, and connect to a host name that it has"
    ),
    RefusalCause.THROTTLED: "correct user name and password in the device, and wait a minute",
    RefusalCause.BUSY: "nothing if it connects later; else see the problem `logins` of waypost status",
    RefusalCause.NOT_ADMITTED: "register and enable the device at the device API",
    RefusalCause.NOT_ALLOWED_TO_SEND: (
        "add the right to its present ones (waypost user list): "
        "waypost user allow {user_word} --allow … --allow {send_word}"
    ),
    RefusalCause.NOT_ALLOWED_TO_RECEIVE: (
        "add the right to its present ones (waypost user list): "
        "waypost user allow {user_word} --allow … --allow {recv_word}"
    ),
    RefusalCause.TOO_MANY_CONNECTIONS: (
        "find clients with many connections: waypost client list; or raise spec.limits.connectionsMax of the Gateway"
    ),
    RefusalCause.TOO_MANY_SESSIONS: (
        "end sessions that no client uses: waypost client list --state absent; or raise spec.limits of the Gateway"
    ),
    RefusalCause.CLIENT_ID_TAKEN: "give the device a client identifier of its own",
    RefusalCause.PROTOCOL_ERROR: "see its packets: waypost client trace --client {name_word}; then update its software",
    RefusalCause.WRONG_PORT: "connect to the port of its protocol",
}


def describe_refusal(entry: RefusedClient) -> str:
    """Return why the client is refused, as one line without a full stop."""
    what = _WHAT[entry.key.cause].format_map(_names(entry))
    return f"{what}: {line(entry.detail)}" if entry.detail else what


def next_step_of_refusal(entry: RefusedClient) -> str:
    """Return what to do about it, with names quoted for a shell."""
    return _NEXT_STEPS[entry.key.cause].format_map(_names(entry))


def _names(entry: RefusedClient) -> dict[str, str]:
    remote, user, client, _ = entry.key
    return {
        "remote": line(remote) or "an unknown address",
        "user": line(user) or "-",
        "client": line(client) or "-",
        "address": line(entry.address) or "-",
        "user_word": word(line(user) or "NAME"),
        "name_word": word(line(client or remote) or "ID"),
        "send_word": word(f"send:{line(entry.address)}"),
        "recv_word": word(f"recv:{line(entry.address)}"),
    }
