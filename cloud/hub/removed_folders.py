"""Folders with the stored messages of applications of removed tenants: put aside first, deleted after a time.

A hub that could not reach the registry, or a program of an older version, may have served applications of a tenant
after its removal. Messages that were acknowledged to them are kept for `KEPT_S`, so the operator can use them.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bridge.durable_file import FOLDER_MODE, sync_path
from cloud.hub.spaces import FOLDER

log = logging.getLogger(__name__)

ASIDE: Final = ".removed"
"""Folder next to those of the tenants; a tenant cannot have this name."""
KEPT_S: Final = 30 * 86_400
"""Time from the moment when a folder is put aside to its deletion: a backup that is wrong is noticed within a month."""


class RemovedFolders:
    """Folders of removed tenants in a data directory. Every method blocks, and raises OSError."""

    def __init__(self, data: Path) -> None:
        self._spaces = data / FOLDER
        self._aside = data / FOLDER / ASIDE

    def put_aside(self, tenant: str, now_us: int) -> Path | None:
        """Move the folder of a removed tenant, durable on return; return its new place, None if it does not exist. Its
        space must not be open. `now_us`: UTC microseconds."""
        folder = self._spaces / tenant
        if not folder.is_dir() or folder.is_symlink():
            return None
        self._aside.mkdir(mode=FOLDER_MODE, exist_ok=True)
        place = self._aside / f"{tenant}.{now_us}"
        folder.rename(place)
        for changed in (self._aside, self._spaces):
            sync_path(changed)
        log.warning(
            "tenant %s was removed: its stored messages are in %s, and are deleted in 30 days (%d bytes)",
            *(tenant, place, sum(each.stat().st_size for each in place.rglob("*") if each.is_file())),
        )
        return place

    def delete_old(self, now_us: int, is_removed: Callable[[str], bool]) -> int:
        """Delete folders that were put aside `KEPT_S` ago; return their number. `now_us`: UTC microseconds.
        `is_removed`: a tenant that the registry does not know as removed, as an older copy was restored, keeps its
        folders. One that cannot be deleted stops no other one; its error is raised last."""
        count, failed = 0, None
        for place in sorted(self._aside.iterdir()) if self._aside.is_dir() else ():
            tenant, _, moment = place.name.rpartition(".")
            if not (moment.isascii() and moment.isdecimal() and is_removed(tenant)):
                continue
            if now_us - int(moment) >= KEPT_S * 1_000_000:
                try:
                    shutil.rmtree(place)
                except OSError as error:
                    failed = error
                    continue
                log.info("deleted the stored messages of a removed tenant: %s", place.name)
                count += 1
        if failed is not None:
            raise failed
        return count
