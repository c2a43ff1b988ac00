"""Possible content of a disk after a power cut: a pure model, fed with the trace of `tests.support.medium`.

Synced data is durable: a file's bytes and size after a sync of the file, a name (made, removed, renamed) after a sync
of its folder. Later changes may be there or not, in any order, in whole sectors. A file may have grown without its new
bytes. A failed sync makes nothing durable and lets the kernel forget: earlier writes may be lost although a later sync
succeeds (Linux since 4.13 marks such pages clean).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

from tests.support.medium import Event, Kind

SECTORS = (512, 4096)
"""Units that a medium writes as a whole, in bytes: a disk's sector, a flash page."""
HOWS = ("nothing", "all", "prefix", "scatter", "scatter")


class Change(NamedTuple):
    """Write at `offset`, or with `data` None a change of the size to `offset`."""

    offset: int
    data: bytes | None


@dataclass(eq=False)
class File:
    """Synced bytes of a file, and the changes since then."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def forget(self, dice: random.Random) -> None:
        """Handle a failed sync: any of its data may be lost for good."""
        kept = 0.0 if dice.random() < 0.5 else 0.5
        self.pending = [change for change in self.pending if dice.random() < kept]

    def after_cut(self, how: str, dice: random.Random) -> bytes:
        """Return a possible state after a cut, and `how` much of the pending changes it has."""
        content = bytearray(self.durable)
        sector = dice.choice(SECTORS)
        if how == "all":
            for change in self.pending:
                _apply(content, change)
        elif how == "prefix" and self.pending:
            count = dice.randrange(len(self.pending))
            for change in self.pending[:count]:
                _apply(content, change)
            _apply(content, _torn(self.pending[count], sector, dice))
        elif how == "scatter":
            self._scatter(content, sector, dice)
        return bytes(content)

    def _scatter(self, content: bytearray, sector: int, dice: random.Random) -> None:
        share = dice.choice((0.1, 0.5, 0.9))
        grown = len(content)
        for change in self.pending:
            if change.data is None:
                if dice.random() < share:
                    _apply(content, change)
                continue
            grown = max(grown, change.offset + len(change.data))
            for piece in _pieces(change, sector):
                if dice.random() < share:
                    _apply(content, piece)
        if grown > len(content) and dice.random() < 0.5:  # the size is durable, the bytes are the former ones
            gap = grown - len(content)
            content += dice.randbytes(gap) if dice.random() < 0.5 else bytes(gap)


class Disk:
    """Files and folders below one folder; paths are as in the trace."""

    def __init__(self, files: dict[str, bytes], folders: set[str], seed: int) -> None:
        """Create a disk with durable content."""
        self._now = {path: File(bytearray(data)) for path, data in files.items()}
        self._names: dict[str, list[File | None]] = {path: [file] for path, file in self._now.items()}
        self._folders = dict.fromkeys(folders, True)
        self._open: dict[int, tuple[str, File | None]] = {}
        self._dice = random.Random(seed)

    def apply(self, event: Event) -> None:
        """Apply the next call of the trace."""
        kind, file, offset, data = event
        if kind in {Kind.OPENED, Kind.CREATED}:
            path = data.decode()
            if path in self._folders:
                self._open[file] = (path, None)
                return
            if path not in self._now:
                self._name(path, File())
            self._open[file] = (path, self._now[path])
        elif kind is Kind.MADE:
            self._folders[data.decode()] = False
        elif kind is Kind.UNLINKED:
            self._name(data.decode(), None)
        elif kind is Kind.RENAMED:
            source, target = data.decode().split("\0")
            self._name(target, self._now[source])
            self._name(source, None)
        else:
            self._change(kind, *self._open[file], Change(offset, data if kind is Kind.WRITTEN else None))

    def cut(self, dice: random.Random) -> tuple[dict[str, bytes], set[str], str]:
        """Return (files, folders, how) after a power cut now."""
        how = dice.choice(HOWS)
        folders = {path for path, durable in self._folders.items() if durable or _happened(how, dice)}
        lost = {path for path in self._folders if path not in folders}
        files: dict[str, bytes] = {}
        for path, states in self._names.items():
            state = states[-1] if how == "all" else states[0] if how == "nothing" else dice.choice(states)
            if state is not None and not any(path.startswith(f"{folder}/") for folder in lost):
                files[path] = state.after_cut(how, dice)
        return files, folders, how

    def _name(self, path: str, file: File | None) -> None:
        if file is None:
            del self._now[path]
        else:
            self._now[path] = file
        self._names.setdefault(path, [None]).append(file)

    def _change(self, kind: Kind, path: str, file: File | None, change: Change) -> None:
        if file is not None:
            if kind is Kind.SYNCED:
                file.sync()
            elif kind is Kind.SYNC_FAILED:
                file.forget(self._dice)
            else:
                file.pending.append(change)
        elif kind is Kind.SYNCED:
            self._sync_folder(path)

    def _sync_folder(self, path: str) -> None:
        for name, states in list(self._names.items()):
            if str(PurePath(name).parent) == path:
                del states[:-1]
                if states == [None]:
                    del self._names[name]
        for folder in self._folders:
            if str(PurePath(folder).parent) == path:
                self._folders[folder] = True


def _happened(how: str, dice: random.Random) -> bool:
    return how == "all" or (how != "nothing" and dice.random() < 0.5)


def _apply(content: bytearray, change: Change) -> None:
    offset, data = change
    if data is None:
        if offset < len(content):
            del content[offset:]
        else:
            content += bytes(offset - len(content))
    elif data:
        if offset > len(content):
            content += bytes(offset - len(content))
        content[offset : offset + len(data)] = data


def _pieces(change: Change, sector: int) -> list[Change]:
    assert change.data is not None
    offset, data = change
    pieces: list[Change] = []
    while data:
        count = sector - offset % sector
        pieces.append(Change(offset, data[:count]))
        offset, data = offset + count, data[count:]
    return pieces


def _torn(change: Change, sector: int, dice: random.Random) -> Change:
    if change.data is None:
        return change
    pieces = _pieces(change, sector)
    return Change(change.offset, b"".join(piece.data or b"" for piece in pieces[: dice.randrange(len(pieces) + 1)]))
