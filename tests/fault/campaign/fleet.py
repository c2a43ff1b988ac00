"""Hub, gateways behind narrow links, and devices of a run: real processes."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

from tests.demo.ports import free_ports
from tests.fault.campaign.plans import CampaignPlan
from tests.support.artefacts import KEY, sealed
from tests.support.bulk_devices import register_many
from tests.support.command import run_waypost
from tests.support.device_fleet import PASSWORD, DeviceFleet
from tests.support.operator import HubOperator
from tests.support.processes import Waypost, gateway_at, wait_until

PART_BYTES: Final = 1 << 20
"""Bytes of a part of an upload."""


class RunSize(NamedTuple):
    """Size of a run."""

    gateways: int
    devices: int
    image_bytes: int
    link_bytes_s: float
    """Bandwidth of each gateway to the hub, each way."""
    interval_s: float
    """Mean time between two readings of a device."""
    bad_share: float
    """Devices that cannot run the new version."""
    resets_s: float
    """Mean time between two resets of a device while it downloads."""


class CampaignFleet(DeviceFleet):
    """A hub, and gateways with trusted keys behind links of one bandwidth."""

    def __init__(self, folder: Path, size: RunSize) -> None:
        super().__init__(folder)
        self.size: Final = size
        self.names: Final = [f"gw{number:02}" for number in range(size.gateways)]
        self._links: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        words = (str(self.hub_port), str(self.size.gateways), str(self.size.link_bytes_s))
        command = [sys.executable, "-m", "tests.fault.campaign.links", *words]
        self._links = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ports = json.loads(_line(self._links.stdout))
        for name, port in zip(self.names, ports, strict=True):
            self._enrol(name, port)
        self._trust()
        return self

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        if self._links is not None:
            self._links.kill()
            self._links.communicate()

    def link_bytes(self) -> dict[str, int]:
        """Return the bytes that each gateway has received from the hub."""
        assert self._links is not None
        assert self._links.stdin is not None
        self._links.stdin.write("\n")
        self._links.stdin.flush()
        counted = json.loads(_line(self._links.stdout))
        return {name: int(down) for name, (_, down) in zip(self.names, counted, strict=True)}

    def _enrol(self, name: str, port: int) -> None:
        """Enrol a gateway over its link, on ports that it keeps over a restart, and start it."""
        mqtt, http = free_ports(2)
        places = ("--mqtt", f"127.0.0.1:{mqtt}", "--amqp", "none", "--http", f"127.0.0.1:{http}", "--https", "none")
        token = self.fleet("token", "create")
        options = ("--name", name, "--hub", f"amqps://localhost:{port}", "--token", token, "--forward", "plant/#")
        done = run_waypost("init", "--data", str(self.folder / name), *options, *places)
        assert done.returncode == 0, done.stderr
        self.gateways[name] = gateway_at(self.folder / name).start()

    def _trust(self) -> None:
        """Let all gateways trust the maker."""
        spec = {"trustedKeys": [KEY.public.pem], "artefacts": []}
        document = {"apiVersion": "waypost/v1", "kind": "Artefacts", "metadata": {"name": "gateway"}, "spec": spec}
        self.fleet("config", "apply", *self.names, "-f", self.written("artefacts.yaml", json.dumps(document)))
        for name in self.names:
            self.wait_for(name, "confirmed", 1, timeout_s=300.0)

    def upload(self, image: bytes) -> None:
        """Store the new version at the hub."""
        hub = HubOperator(self.hub)
        assert hub.send("POST", "artefact-keys", {"pem": KEY.public.pem, "label": "Maker"}).status == 201
        assert hub.send("POST", "artefacts", sealed(image), "application/cose").status == 201
        for number, start in enumerate(range(0, len(image), PART_BYTES)):
            content = image[start : start + PART_BYTES]
            path = f"artefacts/blinker/1.2.0/parts/{number}"
            assert hub.send("PUT", path, content, "application/octet-stream").status == 200
        assert hub.send("POST", "artefacts/blinker/1.2.0/complete").status == 200

    def register_all(self) -> list[CampaignPlan]:
        """Register the devices, half of which update over HTTP; return their plans."""
        plans = []
        for number in range(self.size.devices):
            gateway = self.gateways[self.names[number % len(self.names)]]
            chance = random.Random(number)
            plans.append(
                CampaignPlan(
                    name=f"d{number:04}",
                    password=PASSWORD,
                    mqtt=gateway.port("mqtt"),
                    http=gateway.port("http") if number // len(self.names) % 2 else 0,
                    key=KEY.public.pem,
                    seed=number,
                    bad=chance.random() < self.size.bad_share,
                    interval_s=self.size.interval_s,
                    resets_s=self.size.resets_s,
                )
            )
        self.hub.stop()
        places = ((plan.name, self.names[number % len(self.names)]) for number, plan in enumerate(plans))
        register_many(self.folder / "hub", places, PASSWORD)
        self.hub.start()
        return plans


class DeviceProcess:
    """Process with a part of the devices."""

    def __init__(self, folder: Path, number: int, plans: Sequence[CampaignPlan]) -> None:
        self._result = folder / f"devices-{number}.json"
        self._log = (folder / f"devices-{number}.log").open("w+")
        command = [sys.executable, "-m", "tests.fault.campaign.worker"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._log, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"plans": plans, "result": str(self._result)}) + "\n")
        self._process.stdin.flush()

    def counts(self) -> Counter[str]:
        """Return what its devices have done. AssertionError when it has ended."""
        text = Path(self._log.name).read_text()
        assert self._process.poll() is None, text[-5_000:]
        lines = [line for line in text.splitlines(keepends=True) if line.startswith("{") and line.endswith("}\n")]
        return Counter(json.loads(lines[-1])) if lines else Counter()

    def end(self) -> dict[str, Any]:
        """End the devices; return what has happened to each of them."""
        self._process.communicate(timeout=60)
        self._log.close()
        found: dict[str, Any] = json.loads(self._result.read_text())
        return found

    def kill(self) -> None:
        """End the process, if it runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        self._log.close()


class RunningDevices(contextlib.ExitStack):
    """All devices of a run, in some processes."""

    def __init__(self, folder: Path, plans: Sequence[CampaignPlan], processes: int) -> None:
        super().__init__()
        self._processes = [DeviceProcess(folder, number, plans[number::processes]) for number in range(processes)]
        for each in self._processes:
            self.callback(each.kill)

    def counts(self) -> Counter[str]:
        """Return what the devices have done so far."""
        found = Counter[str]()
        for each in self._processes:
            found.update(each.counts())
        return found

    def wait_for(self, count: str, least: int, timeout_s: float) -> None:
        """Wait until a count has this value."""
        what = f"{count} of the devices: {least}"
        wait_until(lambda: self.counts()[count] >= least, timeout_s=timeout_s, what=what, every_s=1.0)

    def end(self) -> dict[str, Any]:
        """End the devices; return what has happened to each of them."""
        found: dict[str, Any] = {}
        for each in self._processes:
            found.update(each.end())
        return found


class Window(NamedTuple):
    """Time in which readings count, in monotonic seconds."""

    begin: float
    end: float

    def waits_ms(self, outcomes: dict[str, Any], apart: Sequence[tuple[float, float]] = ()) -> list[float]:
        """Return the sorted times until PUBACK in milliseconds. `apart`: begins and ends of times that do not count."""
        return sorted(
            1e3 * wait_s
            for each in outcomes.values()
            for at, wait_s in each["waits"]
            if self.begin <= at < self.end and not any(begin <= at + wait_s and at < end for begin, end in apart)
        )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the sorted values is."""
    return values[min(len(values) - 1, int(share * len(values)))]


class Kills:
    """Kills of gateways and hubs, and the times of recovery after them."""

    def __init__(self, recovery_s: float) -> None:
        self._recovery_s = recovery_s
        self.times: list[tuple[float, float]] = []

    def kill(self, *processes: Waypost) -> None:
        """Kill processes, and start them again."""
        begun = time.monotonic()
        for each in processes:
            each.kill()
        for each in processes:
            each.start()
        self.times.append((begun, time.monotonic() + self._recovery_s))


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()
