"""Journal of a simulated device, to verify a gateway's acknowledgements.

JSON Lines, one record a line, in the order of events:

- first    ``{"device": NAME, "address": ADDRESS, "protocol": "mqtt|amqp", "kind": KIND}``
- an ack   ``{"acked": SEQ, "sends": N}``: the gateway acknowledged reading SEQ, which had been sent N times
- state    ``{"event": "connected|disconnected|dropped|...", "at": SECONDS, "detail": TEXT}``
- progress ``{"published": N, "waiting": N, "resent": N}``: about once a second; `waiting` readings are in the buffer
- last     ``{"end": {"published": N, "acknowledged": N, "unacknowledged": N, "dropped": N, "resent": N}}``;
  missing when the device was killed

Lines are flushed, not synced: the journal is evidence against the gateway, not against this machine's power.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TextIO

from simulator.outbox import DeviceOutbox


class SimulatorJournal:
    """Journal of one device; without a path nothing is written."""

    def __init__(self, path: Path | None, *, device: str, address: str, protocol: str, kind: str) -> None:
        """Create or truncate the file. Raises OSError when it cannot be written."""
        self._file: TextIO | None = path.open("w", encoding="utf-8", buffering=1) if path is not None else None
        self._write({"device": device, "address": address, "protocol": protocol, "kind": kind})

    def acknowledged(self, seq: int, sends: int) -> None:
        """Record that the gateway acknowledged a reading."""
        if self._file is not None:
            self._file.write(f'{{"acked": {seq}, "sends": {sends}}}\n')

    def event(self, name: str, detail: str = "") -> None:
        """Record an event of the device or its connection."""
        self._write({"event": name, "at": time.time(), "detail": detail})

    def progress(self, outbox: DeviceOutbox) -> None:
        """Record the counters of the outbox."""
        self._write({"published": outbox.published, "waiting": len(outbox), "resent": outbox.resent})

    def close(self, outbox: DeviceOutbox) -> None:
        """Write the totals and close the file; idempotent."""
        if self._file is None:
            return
        self._write(
            {
                "end": {
                    "published": outbox.published,
                    "acknowledged": outbox.acknowledged,
                    "unacknowledged": len(outbox),
                    "dropped": outbox.dropped,
                    "resent": outbox.resent,
                }
            }
        )
        self._file.close()
        self._file = None

    def _write(self, record: dict[str, object]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
