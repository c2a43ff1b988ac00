"""A hub with enrolment and its gateways: processes, and the commands of their operators."""

from __future__ import annotations

import contextlib
import json
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

from cloud.hub.desired.shown import gateway_row
from cloud.hub.peers import DEFAULT_TENANT
from cloud.hub.registry.configurations import Configurations
from cloud.hub.registry.enrolments import Enrolments
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from tests.support.command import items_in, run_waypost
from tests.support.http_client import ask
from tests.support.lake import rows
from tests.support.processes import Waypost, free_port, gateway_at, landing_soon, wait_until

WAIT_S = 60.0


FLEET_GROUPS = ("hub", "token", "config", "rollout", "command")


def enrolling_hub(folder: Path, *arguments: str, amqps: int = 0) -> Waypost:
    """Return a hub in ``folder/hub`` that accepts gateways by their certificates."""
    places = (f"--amqp=127.0.0.1:{amqps}", "--http=127.0.0.1:0")
    options = (*places, *landing_soon(folder), *arguments)  # a later --config takes the place of this one
    return Waypost(folder / "hub.log", "hub", "run", "--data", str(folder / "hub"), *options)


def run_fleet(folder: Path, *words: str, code: int = 0) -> str:
    """Run a command of the hub in ``folder/hub``; return its output, with errors if it fails.

    The words are those of `waypost gateway`, or begin with the group's name.
    """
    group = () if words[0] in FLEET_GROUPS else ("gateway",)
    done = run_waypost(*group, *words, "--data", str(folder / "hub"))
    assert done.returncode == code, done.stdout + done.stderr
    return (done.stdout + done.stderr if code else done.stdout).strip()


def init_gateway(folder: Path, url: str, token: str, *, name: str = "hall") -> tuple[int, str]:
    """Run `waypost init` for ``folder/name``; return its exit code and output."""
    places = ("--mqtt", "127.0.0.1:0", "--amqp", "none", "--http", "127.0.0.1:0", "--https", "none")
    options = ("--name", name, "--hub", url, "--token", token, "--forward", "plant/#")
    done = run_waypost("init", "--data", str(folder / name), *options, *places)
    return done.returncode, done.stdout + done.stderr


def operator_uplink(gateway: Waypost) -> dict[str, Any]:
    """Return the uplink in the status of a gateway, which its operator's token opens."""
    token = (gateway.data / "operator.token").read_text().strip()
    answer = ask(gateway, "GET", "/api/v1/status", headers={"Authorization": f"Bearer {token}"})
    assert answer.status == HTTPStatus.OK, answer
    return dict(answer.document["uplink"])


def landed(folder: Path) -> list[tuple[str, str, int]]:
    """Return gateway, epoch and sequence of each message in the lake of the hub in ``folder/hub``."""
    found = rows(folder / "hub" / "lake", "telemetry")
    return sorted((row["gateway"], row["epoch"], row["sequence"]) for row in found)


class EnrolledFleet:
    """One hub, and gateways by name, inside one folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        """`options`: further options of the hub."""
        self.folder = folder
        self.hub_port = free_port()
        self.hub = enrolling_hub(folder, *options, amqps=self.hub_port)
        self.gateways: dict[str, Waypost] = {}

    def __enter__(self) -> Self:
        self.hub.start()
        return self

    def __exit__(self, *details: object) -> None:
        for each in (*self.gateways.values(), self.hub):
            each.__exit__(*details)

    @property
    def url(self) -> str:
        return f"amqps://localhost:{self.hub_port}"

    @property
    def lake(self) -> Path:
        return self.folder / "hub" / "lake"

    def fleet(self, *words: str, code: int = 0) -> str:
        """Run a command of the hub, as `run_fleet` does; return its output with errors."""
        return run_fleet(self.folder, *words, code=code)

    def here(self, name: str, *words: str, code: int = 0) -> str:
        """Run a command on a gateway's data directory; return its output."""
        done = run_waypost(*words, "--data", str(self.folder / name))
        assert done.returncode == code, done.stdout + done.stderr
        return str(done.stdout + done.stderr)

    def enrol(self, name: str, *labels: str) -> Waypost:
        """Enrol a gateway, with a token that carries labels; return it without starting it."""
        token = self.fleet("token", "create", *(f"--label={each}" for each in labels))
        code, output = init_gateway(self.folder, self.url, token, name=name)
        assert code == 0, output
        made = self.gateways[name] = gateway_at(self.folder / name)
        return made

    def written(self, name: str, text: str) -> str:
        """Write a file with this text; return its path."""
        file = self.folder / name
        file.write_text(text)
        return str(file)

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the result of `waypost config list` by gateway, without a process for each call."""
        with contextlib.closing(open_registry(sqlite_url(self.folder / "hub" / "registry.db")).database) as database:
            return {each.gateway: gateway_row(each) for each in Configurations(database).gateways()}

    def rollout(self, rollout: str) -> dict[str, Any]:
        """Return the result of `waypost rollout status` for one roll-out."""
        [found] = items_in(self.fleet("rollout", "status", rollout, "--json"))
        return dict(found)

    def wait_for_rollout(self, rollout: str, state: str) -> dict[str, Any]:
        """Wait until a roll-out has this state; return what `rollout` returns then."""
        what = f"the roll-out is {state}"
        wait_until(lambda: self.rollout(rollout)["state"] == state, timeout_s=WAIT_S, what=what, every_s=0.3)
        return self.rollout(rollout)

    def attested(self, name: str) -> dict[str, Any]:
        """Return the identity that a gateway has reported; empty before."""
        with contextlib.closing(Enrolments(sqlite_url(self.folder / "hub" / "registry.db"))) as enrolments:
            told = enrolments.attestation(DEFAULT_TENANT, name)
        return dict(json.loads(told[1])) if told is not None else {}

    def wait_for(self, name: str, state: str, wanted: int, *, timeout_s: float = WAIT_S) -> dict[str, Any]:
        """Wait until a gateway is in this state of this version; return its row."""

        def there() -> bool:
            row = self.states().get(name)
            return row is not None and (row["state"], row["wanted"]) == (state, wanted)

        wait_until(there, timeout_s=timeout_s, what=f"{name} is {state} about {wanted}", every_s=0.2)
        return self.states()[name]
