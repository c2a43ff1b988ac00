"""Check a history against the rules for versions of configuration from the hub; a part of `checker`."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.desired import SOUND


class Versions:
    """Versions that were requested, tried and confirmed."""

    def __init__(self, wrong: Callable[[str], None]) -> None:
        """Create the check. `wrong` is called with each violation."""
        self.on: dict[str, Callable[..., None]] = {
            "wanted": self._on_wanted,
            "versions": self._on_versions,
            "followed": self._on_followed,
            "told": self._on_told,
            "known of versions": self._on_known,
            "configured at last": self._on_configured_at_last,
        }
        self._wrong = wrong
        self._kinds: dict[int, str] = {0: "none"}
        """Kind of each version, by mark."""
        self._newest = 0
        self._confirmed = (0, 0)
        """(version, mark)"""
        self._trial = (0, 0)
        self._tried: set[int] = set()
        """Marks that were tried since the card was restored."""
        self._ever_confirmed: set[int] = set()
        self._told: set[int] = set()
        """Versions that the hub knows to be tried."""

    def put_back(self) -> None:
        """Restore an older copy: the gateway may try versions again that it had rolled back."""
        self._newest, self._confirmed, self._trial = 0, (-1, -1), (0, 0)
        self._tried.clear()

    def _on_wanted(self, mark: int, kind: str) -> None:
        self._kinds[mark] = kind

    def _on_told(self, version: int) -> None:
        self._told.add(version)

    def _on_versions(self, newest: int, confirmed: int, confirmed_mark: int, tried: int, tried_mark: int) -> None:
        if newest < self._newest:
            self._wrong(f"the gateway had decided about version {self._newest}, and knows of {newest} only")
        if tried and (tried, tried_mark) != self._trial:
            self._begins(tried, tried_mark)
        if (confirmed, confirmed_mark) != self._confirmed and self._confirmed != (-1, -1):
            self._confirms(confirmed, confirmed_mark)
        self._newest, self._confirmed, self._trial = newest, (confirmed, confirmed_mark), (tried, tried_mark)

    def _begins(self, version: int, mark: int) -> None:
        if self._trial != (0, 0):
            self._wrong(f"version {version} is tried, and {self._trial[0]} was being tried")
        if version <= self._newest:
            self._wrong(f"version {version} is tried, and the gateway had decided about {self._newest}")
        if mark in self._tried:
            self._wrong(f"version {version} is tried again")
        if self._kinds[mark] == "no connector" or self._kinds[mark] == "no leave to restart":
            self._wrong(f"version {version} is tried: {self._kinds[mark]}")
        self._tried.add(mark)
        self._told.discard(version)

    def _confirms(self, version: int, mark: int) -> None:
        if (version, mark) != self._trial:
            self._wrong(f"version {version} is confirmed, and was not tried")
        if version not in self._told:
            self._wrong(f"version {version} is confirmed, and its hub did not know that it is tried")
        if self._kinds[mark] not in SOUND:
            self._wrong(f"version {version} is confirmed: {self._kinds[mark]}")
        self._ever_confirmed.add(mark)

    def _on_followed(self, mark: int) -> None:
        if mark not in (self._confirmed[1], self._trial[1]) and self._confirmed[1] >= 0:
            self._wrong(f"the gateway goes by mark {mark}, and has {self._confirmed[1]} and {self._trial[1]}")

    def _on_known(self, mark: int, state: str) -> None:
        if state == "confirmed" and mark not in self._ever_confirmed and self._confirmed[1] >= 0:
            self._wrong(f"the hub takes mark {mark} for confirmed, and the gateway never has")

    def _on_configured_at_last(self, wanted: int, followed: int) -> None:
        if wanted != followed:
            self._wrong(f"the hub wants mark {wanted} and takes it for confirmed; the gateway goes by {followed}")
        if self._trial != (0, 0):
            self._wrong(f"version {self._trial[0]} is being tried still")
