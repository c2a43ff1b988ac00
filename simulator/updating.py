"""Update of a simulated device by itself: two slots, a trial of the new version, and a way back.

A slot, the version that runs, and reports that are not acknowledged are on its flash: they outlast a reset.
"""

from __future__ import annotations

import asyncio
import io
import random
import time
from typing import Final, NamedTuple

from bridge.artefacts.faults import ArtefactRefused
from bridge.artefacts.keys import MakerPublicKey
from bridge.artefacts.manifest import ArtefactManifest
from bridge.artefacts.verification import (
    check_board,
    check_installed,
    check_sequence,
    verify_image,
    verify_manifest,
)
from simulator.kinds import SoftwareUpdates
from simulator.tally import DeviceTally
from simulator.update_ways import UpdateExchange

TRIALS_MAX: Final = 3
"""Times that a device tries a version that does not start."""


class DeviceReset(Exception):
    """The device starts again; what is not on its flash is lost."""


class PendingReport(NamedTuple):
    """Report of a state that the gateway has not acknowledged."""

    artefact: tuple[str, str]
    """Name and version."""
    state: str
    reason: str = ""


class DeviceUpdater:
    """Flash of one device, and its steps from an offer to the new version."""

    def __init__(
        self,
        settings: SoftwareUpdates,
        key: MakerPublicKey,
        installed: tuple[str, int],
        chance: random.Random,
        tally: DeviceTally,
    ) -> None:
        """`installed`: version and sequence that the device runs."""
        self._settings: Final = settings
        self._key: Final = key
        self.version, self._sequence = installed
        self._random = chance
        self._tally = tally
        self._fails: Final = chance.random() < settings.failing
        self._slot = bytearray()
        self._slot_of = ""
        """SHA-256 of the image in the second slot."""
        self._pending: list[PendingReport] = []
        self._refused: set[bytes] = set()
        """Manifests that are not looked at again: refused, or tried in vain."""
        self.ended = False
        """True when the last update is healthy or rolled back, and the gateway knows it."""
        tally.versions[self.version] += 1

    @property
    def fails(self) -> bool:
        """True if no new version starts on this device."""
        return self._fails

    async def run(self, exchange: UpdateExchange) -> None:
        """Look for updates and install them, over one connection. Raises `DeviceReset`, `LinkLost`."""
        await exchange.start()
        try:
            while True:
                await self._report_pending(exchange)
                await self._try_update(exchange)
                if not self._pending:
                    await asyncio.sleep(self._settings.poll * (0.5 + self._random.random()))
        finally:
            exchange.close()

    async def _report_pending(self, exchange: UpdateExchange) -> None:
        while self._pending:
            artefact, state, reason = self._pending[0]
            await exchange.report(artefact, state, reason)
            self._pending.pop(0)
            self._tally.record_state(state)
            self.ended = self.ended or state in ("healthy", "rolled-back")

    async def _try_update(self, exchange: UpdateExchange) -> None:
        """Fetch, verify and install what is offered, if anything is."""
        envelope = await exchange.offered(self.version)
        if envelope is None or envelope in self._refused:
            return
        try:
            manifest = verify_manifest(envelope, (self._key,), time.time())
            if manifest.version == self.version:
                return
            check_board(manifest, self._settings.board)
            check_sequence(manifest, self._sequence)
            check_installed(manifest, self.version)
            await self._fetch(manifest, exchange)
        except ArtefactRefused as why:
            self._refused.add(envelope)
            self._tally.errors[f"artefact-{why.fault.value}"] += 1
            self._slot, self._slot_of = bytearray(), ""
            return
        self._install(manifest, envelope)

    async def _fetch(self, manifest: ArtefactManifest, exchange: UpdateExchange) -> None:
        artefact = (manifest.name, manifest.version)
        if self._slot_of != manifest.digest:
            self._slot, self._slot_of = bytearray(), manifest.digest
            await self._report(exchange, artefact, "downloading")
        await self._download(manifest, exchange)
        verify_image(manifest, io.BytesIO(self._slot))
        await self._report(exchange, artefact, "verified")

    async def _report(self, exchange: UpdateExchange, artefact: tuple[str, str], state: str) -> None:
        await exchange.report(artefact, state, "")
        self._tally.record_state(state)

    async def _download(self, manifest: ArtefactManifest, exchange: UpdateExchange) -> None:
        resets_at = time.monotonic() + self._reset_after()
        while len(self._slot) < manifest.size:
            self._slot += await exchange.content(manifest, len(self._slot))
            if time.monotonic() > resets_at:
                raise DeviceReset

    def _reset_after(self) -> float:
        """Return the seconds until the next reset of a device that downloads."""
        return self._random.expovariate(1 / self._settings.resets) if self._settings.resets > 0 else float("inf")

    def _install(self, manifest: ArtefactManifest, envelope: bytes) -> None:
        """Restart with the new version; a device on which it does not start is back on its own one then."""
        artefact = (manifest.name, manifest.version)
        self._pending.append(PendingReport(artefact, "installed"))
        if self._fails:
            self._refused.add(envelope)
            self._pending.append(PendingReport(artefact, "rolled-back", f"no boot after {TRIALS_MAX} attempts"))
        else:
            self._tally.versions[self.version] -= 1
            self.version, self._sequence = manifest.version, manifest.sequence
            self._tally.versions[self.version] += 1
            self._pending.append(PendingReport(artefact, "healthy"))
        self._slot, self._slot_of = bytearray(), ""
        raise DeviceReset
