"""Limits on the rate of requests, by user and by remote address."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final, NamedTuple

from edge.broker.http.limits import (
    API_ADDRESS_BURST,
    API_ADDRESS_PER_S,
    API_RATES_MAX,
    API_USER_BURST,
    API_USER_PER_S,
    SESSION_LOOKUPS_BURST,
    SESSION_LOOKUPS_PER_S,
)
from edge.broker.http.refusal import RequestRefused

_API: Final = "/api/"
_DEVICES: Final = "/v1/"
"""Begin of the paths of a hub's device registry. Its users may import many devices, so they have no rate; requests
wait for the registry, which has a limit of its own."""
_SESSION: Final = "/api/v1/session"
"""Begin of the paths for signing in, which have limits of their own; a page asks there whether it is signed in."""


class RateLimit(NamedTuple):
    """Requests a second, and requests at once after a pause."""

    per_s: float
    burst: int


USER_LIMIT: Final = RateLimit(API_USER_PER_S, API_USER_BURST)
ADDRESS_LIMIT: Final = RateLimit(API_ADDRESS_PER_S, API_ADDRESS_BURST)
LOOKUP_LIMIT: Final = RateLimit(SESSION_LOOKUPS_PER_S, SESSION_LOOKUPS_BURST)


class RequestRates:
    """Generic cell rate algorithm (ITU-T I.371) for subjects: users, or addresses."""

    def __init__(self, limit: RateLimit, subjects_max: int = API_RATES_MAX) -> None:
        self._limit = limit
        self._subjects_max = subjects_max
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """Time at which a subject has its whole burst again, the latest request last."""

    def take(self, subject: str, now: float) -> float:
        """Count a request at a time in monotonic seconds. Return 0, or the seconds until it is allowed."""
        interval = 1 / self._limit.per_s
        full_at = max(self._full_at.get(subject, now), now)
        wait = full_at + interval - now - self._limit.burst * interval
        if wait > 0:
            return wait
        self._full_at[subject] = full_at + interval
        self._full_at.move_to_end(subject)
        if len(self._full_at) > self._subjects_max:
            self._full_at.popitem(last=False)  # it has paused for longest
        return 0.0


class ApiRates:
    """Limits on the requests to the API of a node. Those of devices are limited by their quotas."""

    def __init__(self) -> None:
        self._users = RequestRates(USER_LIMIT)
        self._addresses = RequestRates(ADDRESS_LIMIT)
        self._lookups = RequestRates(LOOKUP_LIMIT)
        self._sign_outs = RequestRates(LOOKUP_LIMIT)

    def check_address(self, path: str, address: str, now: float) -> None:
        """Count a request without valid credentials from an address. Raises RequestRefused."""
        if _is_limited(path) or path.startswith(_DEVICES):
            why = f"more than {ADDRESS_LIMIT.per_s:g} requests a second without valid credentials from {address}"
            _require(self._addresses.take(address, now), why)

    def check_user(self, path: str, user: str, now: float) -> None:
        """Count a request of a user. Raises RequestRefused."""
        if _is_limited(path):
            _require(self._users.take(user, now), f"more than {USER_LIMIT.per_s:g} requests a second of {user}")

    def check_sign_out(self, address: str, now: float) -> None:
        """Count a logout of the issuer from an address. Raises RequestRefused."""
        why = f"more than {LOOKUP_LIMIT.per_s:g} logouts a second from {address}"
        _require(self._sign_outs.take(address, now), why)

    def check_lookup(self, address: str, now: float) -> None:
        """Count an unknown session from an address, on any path. Raises RequestRefused."""
        why = f"more than {LOOKUP_LIMIT.per_s:g} unknown sessions a second from {address}"
        _require(self._lookups.take(address, now), why)


def _is_limited(path: str) -> bool:
    return path.startswith(_API) and not path.startswith(_SESSION)


def _require(wait_s: float, why: str) -> None:
    if wait_s > 0:
        seconds = max(1, math.ceil(wait_s))
        raise RequestRefused(
            429, why, {"Retry-After": str(seconds)}, next_step=f"wait {seconds} s, and send fewer at once"
        )
