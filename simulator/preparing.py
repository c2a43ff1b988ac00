"""Registration of the devices of a run, with the CSV of their passwords."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from edge.output.amounts import counted
from edge.output.errors import CommandError, Exit
from edge.output.terminal import say
from simulator.credentials_file import DeviceCredentials, read_credentials, write_credentials
from simulator.device import FleetDevicePlan
from simulator.kinds import SimulationSpec
from simulator.planning import all_names, gateway_of, plan_devices
from simulator.registration import (
    KNOWN_S,
    RegistrationPlace,
    UnregisteredDevice,
    credentials_of,
    make_devices,
    wait_until_known,
)


class Preparation:
    """Registers devices that are not in the CSV, and removes those of the simulation."""

    def __init__(
        self, spec: SimulationSpec, seed: int, folder: Path, registry: RegistrationPlace, credentials: Path
    ) -> None:
        """`folder`: place of the files that the simulation names; `credentials`: path of the CSV."""
        self._spec: Final = spec
        self._seed: Final = seed
        self._folder: Final = folder
        self._registry: Final = registry
        self._path: Final = credentials

    def register(self, known: dict[str, DeviceCredentials]) -> list[FleetDevicePlan]:
        """Register devices without credentials; return the plans of all. Raises CommandError."""
        plans = plan_devices(self._spec, self._seed, {}, self._folder)
        gateways = {plan.login.device: gateway_of(self._spec, number).name for number, plan in enumerate(plans)}
        missing = [plan for plan in plans if plan.login.device not in known]
        if not missing:
            return plan_devices(self._spec, self._seed, known, self._folder)
        write_credentials(self._path, known)  # before anything is registered, as it may not be writable
        with _shown("registering", len(missing)) as advance:

            def done(device: UnregisteredDevice) -> None:
                known[device.name] = credentials_of(device)
                advance()

            try:
                self._registry.add(make_devices(missing, gateways), done)
            finally:
                write_credentials(self._path, known)
        say(f"{counted(len(missing), 'device')} registered; their passwords are in {self._path}", err=True)
        ready = plan_devices(self._spec, self._seed, known, self._folder)
        new = {plan.login.device for plan in missing}
        try:
            asyncio.run(wait_until_known([plan for plan in ready if plan.login.device in new]))
        except TimeoutError:
            step = "are the gateways connected to the hub? `waypost gateway list`; then start again with the same CSV"
            words = f"the gateways do not let in the new devices after {KNOWN_S:.0f} s"
            raise CommandError(words, step, error="device-failed", code=Exit.FAILED) from None
        return ready

    def remove(self) -> None:
        """Remove the devices of the simulation that are in the CSV. Raises CommandError."""
        known = read_credentials(self._path)
        names = [name for name in all_names(self._spec) if name in known]
        with _shown("removing", len(names)) as advance:

            def done(name: str) -> None:
                del known[name]
                advance()

            try:
                self._registry.remove(names, done)
            finally:
                write_credentials(self._path, known)
        say(f"{counted(len(names), 'device')} removed", err=True)


@contextlib.contextmanager
def _shown(words: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on stderr, if that is a terminal; yield the function that counts one more."""
    columns = (TextColumn(words), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)
