"""What a device writes down about itself, so that others can hold the gateway to its acknowledgements.

JSON Lines, one record a line, in the order things happened:

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

from edge.appliance.simulator.outbox import DeviceOutbox


class SimulatorJournal:
    """Writes one device's journal; without a path it writes nothing."""

    def __init__(self, path: Path | None, *, device: str, address: str, protocol: str, kind: str) -> None:
        """Starts the file anew. Raises OSError when it cannot be written."""
        self._file: TextIO | None = path.open("w", encoding="utf-8", buffering=1) if path is not None else None
        self._write({"device": device, "address": address, "protocol": protocol, "kind": kind})

    def acknowledged(self, seq: int, sends: int) -> None:
        """The gateway acknowledged a reading."""
        if self._file is not None:
            self._file.write(f'{{"acked": {seq}, "sends": {sends}}}\n')

    def event(self, name: str, detail: str = "") -> None:
        """Something happened to the device or its connection."""
        self._write({"event": name, "at": time.time(), "detail": detail})

    def progress(self, outbox: DeviceOutbox) -> None:
        """How the device stands now."""
        self._write({"published": outbox.published, "waiting": len(outbox), "resent": outbox.resent})

    def close(self, outbox: DeviceOutbox) -> None:
        """The device is done: write the sums and close. Idempotent."""
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
