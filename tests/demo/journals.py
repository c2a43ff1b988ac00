"""Reads journals of running devices (JSON Lines; `waypost simulate --journal`)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from tests.demo.accounting import Deliveries


@dataclass(slots=True)
class Journal:
    """Journal of one device, read as it grows. `waiting` is None when the device does not report it."""

    path: Path
    device: str
    gateway: str
    sends: dict[int, int] = field(default_factory=dict)
    """Number of sends of each acknowledged reading."""
    events: list[tuple[str, float, str]] = field(default_factory=list)
    """(name, seconds since 1970, detail)."""
    connected: bool = False
    waiting: int | None = None
    resent: int = 0
    end: dict[str, int] | None = None
    _read: int = 0

    def follow(self) -> None:
        """Read new lines since the last call; an incomplete line waits for its end."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, record: dict[str, object]) -> None:
        match record:
            case {"acked": int(seq), "sends": int(times)}:
                self.sends[seq] = times
                self.resent += times - 1
            case {"event": str(name), "at": float(at) | int(at), "detail": str(detail)}:
                self.events.append((name, float(at), detail))
                if name in ("connected", "disconnected"):
                    self.connected = name == "connected"
            case {"waiting": int(waiting)}:
                self.waiting = waiting
            case {"end": dict(end)}:
                self.end = {str(name): int(value) for name, value in end.items()}
                self.waiting = self.end.get("unacknowledged", 0)

    def deliveries(self) -> Deliveries:
        """Return the final deliveries."""
        end = self.end or {}
        return Deliveries(
            device=self.device,
            gateway=self.gateway,
            sends=self.sends,
            unacknowledged=end.get("unacknowledged", 0),
            dropped=end.get("dropped", 0),
            ended=self.end is not None,
        )
