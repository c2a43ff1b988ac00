"""Status and problems of a gateway as the console reads them, and a control that records its calls."""

from __future__ import annotations

STATUS: dict[str, object] = {
    "gateway": "gw1",
    "epoch": "5f0e",
    "version": "0.1.0",
    "uptime_s": 12.5,
    "clients": {"mqtt": 2, "amqp": 1, "http": 0},
    "messages": {"received": 100, "acknowledged": 99, "delivered": 80},
    "addresses": [{"address": 'plant/"7"/temp', "type": "topic", "received": 100}],
    "store": {
        "messages": 20,
        "bytes": 2_000,
        "file_bytes": 40_960,
        "wear": {
            "device": "mmcblk0",
            "payload_bytes": 1_000,
            "process_bytes": 2_500,
            "device_bytes": 9_000,
            "bytes_per_day": {"hour": 50.0, "day": 40.0},
            "endurance_bytes": 60e12,
            "used": 0.25,
            "days_left": 1_000.5,
        },
        "commits": {"total": 5, "seconds": 0.25, "buckets": [[0.001, 3], [0.1, 4]]},
    },
    "uplink": {"state": "connecting", "endpoint": "amqp://hub", "backlog_messages": 20, "backlog_bytes": 2_000},
}


FULL = {
    "name": "store",
    "what": "it is full",
    "since": "2026-05-28T20:26:40+00:00",
    "next_step": "free space",
    "severity": "error",
}


SOON = {**FULL, "name": "certificate", "what": "it ends soon", "severity": "warning"}


class RecordingControl:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")
