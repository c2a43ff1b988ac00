"""Tell the hub which devices were added at this gateway: their names, and nothing else of them.

The list goes up in parts when it has changed, one after the other. After each connection the hub compares its digest,
so a gateway or a registry from an older copy is found, and the whole list goes up again.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from bridge.device_reports import PART_NAMES_MAX, LocalDevicesCheck, LocalDevicesPart, position_in
from bridge.limits import DEVICE_CHARACTERS_MAX

if TYPE_CHECKING:
    from bridge.reports import Reports

log = logging.getLogger(__name__)

RESTARTS_MAX: Final = 5
"""Times that a list is started again in a row; then it waits for the next change or connection. Two machines with one
identity would else report against each other for ever."""
_POSITION_BYTES: Final = 16


class LocalDeviceTeller:
    """Tells one hub the devices of one gateway. For the loop's thread."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        """`names` returns those of the devices."""
        self._names = names
        self._reports: Reports | None = None
        self._connected = False
        self._busy = False
        """A report has no answer yet."""
        self._position = ""
        """Position that the hub has."""
        self._told: str | None = None
        """Digest that the hub has; None: unknown."""
        self._again = False
        """There was a connection while a report had no answer."""
        self._restarts = 0

    def tell(self, reports: Reports) -> None:
        """Tell the hub behind these reports."""
        self._reports = reports
        reports.begin_devices(self._compare)

    def look(self) -> None:
        """Tell the hub the devices if they have changed."""
        if self._connected and not self._busy:
            names = self._listed()
            if digest_of(names) != self._told:
                self._send(names, 0)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Let the hub compare its list, after a connection."""
        self._connected, self._restarts = True, 0
        self._again = self._busy
        if self._busy:
            return
        digest, position = digest_of(self._listed()), secrets.token_hex(_POSITION_BYTES)

        def decided(why: str | None) -> None:
            if why is None:
                self._position, self._told = position, digest
            self._answered(why)

        self._report(LocalDevicesCheck(digest=digest, position=position), decided)

    def _send(self, names: list[str], begin: int) -> None:
        """Send the part of a list that begins at an index."""
        part, last = names[begin : begin + PART_NAMES_MAX], begin + PART_NAMES_MAX >= len(names)
        position = secrets.token_hex(_POSITION_BYTES)
        report = LocalDevicesPart(
            base=self._position,
            position=position,
            digest=digest_of(names) if last else "",
            after=names[begin - 1] if begin else "",
            until=None if last else part[-1],
            names=tuple(part),
        )

        def decided(why: str | None) -> None:
            if why is not None:
                self._answered(why)
                return
            self._position = position
            if last:
                self._told, self._restarts = report.digest, 0
                self._answered(None)
            else:
                self._busy = False
                self._send(names, begin + PART_NAMES_MAX)

        self._report(report, decided)

    def _report(self, report: LocalDevicesCheck | LocalDevicesPart, decided: Callable[[str | None], None]) -> None:
        if self._reports is not None:
            self._busy = True
            self._reports.report_device(report, decided)

    def _answered(self, why: str | None) -> None:
        """Continue after an answer."""
        self._busy = False
        position = position_in(why) if why is not None else None
        if position is not None:
            self._position, self._told = position, None
            self._restarts += 1
        elif why is not None:
            log.warning("the hub does not take the list of the devices that were added here: %s", why)
            self._told = digest_of(self._listed())  # until the next change or connection
        if self._again:
            self._compare()
        elif self._restarts <= RESTARTS_MAX:
            self.look()

    def _listed(self) -> list[str]:
        """Return the names in order, those that the registry can have."""
        fit = (each for each in self._names() if 0 < len(each) <= DEVICE_CHARACTERS_MAX and each.isprintable())
        return sorted(fit)


def digest_of(names: Iterable[str]) -> str:
    """Return the digest of a list."""
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).hexdigest()
