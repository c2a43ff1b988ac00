"""Apply the card's file once, and write at each start the files derived from it. Runs as root.

The order protects the file: it is first written to the data partition (one rename, from which on it is applied), then
the gateway's settings are written, and last it is removed from the FAT partition. After an interruption the next start
continues: a file of the same digest was applied. Nothing in this module waits for the network.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import stat
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bridge.durable_file import sync_path
from bridge.resources.errors import ConfigurationRejected
from edge.appliance.first_boot import rendering
from edge.appliance.first_boot.imager_files import take_over
from edge.appliance.first_boot.journal import FirstBootSettings, SettingsRefusal
from edge.appliance.first_boot.places import FOLDER, REFUSAL, WANTED, CardPaths, remove_secret, write_whole
from edge.card.location import FILE
from edge.card.resource import FILE_BYTES_MAX, IN_FORCE, Card, plain_of, read
from edge.card.text import text_of, without_secrets

_REFUSED: Final = """\
The settings in {file} were not applied; the previous ones are still used. Correct the file and restart the gateway.

{errors}
"""

UNREAD_STEP: Final = (
    "switch it off and on; if that fails, run fsck.vfat -a on its first partition elsewhere, or flash a card"
)
TROUBLE_STEP: Final = "correct {file} on the card's first partition, and start the gateway again"


class AppliedSettings(NamedTuple):
    """Result of looking for settings at a start."""

    card: Card | None
    """Current settings; None: none were ever given."""
    new: bool
    """True when they were applied by this start."""
    trouble: str | None
    """Reason why the file on the card was not applied."""
    unread: str | None = None
    """Reason why the card's first partition cannot be read: a file there is ignored."""

    ignored: tuple[str, ...] = ()
    """Settings of Raspberry Pi Imager that a gateway does not have."""
    next_step: str = ""
    """Next step about `trouble`."""

    @property
    def refusal(self) -> SettingsRefusal | None:
        """Reason why settings are not applied, with the next step; None when all are."""
        if self.unread is not None:
            why = f"the card's first partition cannot be read: {self.unread}. Settings on it were not applied"
            return SettingsRefusal(why=why, next_step=UNREAD_STEP)
        if self.trouble is not None:
            why = f"the settings on the card were not applied:\n{self.trouble}"
            return SettingsRefusal(why=why, next_step=self.next_step)
        return None


def apply_settings(places: CardPaths) -> AppliedSettings:
    """Apply new settings if there are any, and write the files of the current ones. Raises OSError."""
    card, new = _read_kept(places), False
    trouble = unread = None
    ignored: tuple[str, ...] = ()
    others: ConfigurationRejected | None = None
    try:
        _require_mounted(places)
        try:
            ignored = take_over(places)
        except ConfigurationRejected as rejected:  # the own file counts all the same
            others = rejected
        found = _read_card(places)
    except OSError as error:
        unread = error.strerror or str(error)
    except ConfigurationRejected as rejected:
        trouble = _note_trouble(places, rejected)
    else:
        if found is not None:
            new = card is None or digest(found) != digest(card)
            card = found
            write_whole(places.kept, found.text, mode=0o600)
    if card is not None:
        _write_files(places, card)
        if trouble is None and unread is None:
            _remove_secrets(places)
    step = TROUBLE_STEP.format(file=FILE) if trouble is not None else ""
    if trouble is None and unread is None and others is not None:
        trouble = _note_trouble(places, others)
        step = TROUBLE_STEP.format(file=f"or delete {others.errors[0].source}")
    applied = AppliedSettings(card, new, trouble, unread, ignored, step)
    record_refusal(places.data, applied.refusal)
    return applied


def _note_trouble(places: CardPaths, rejected: ConfigurationRejected) -> str:
    """Write the errors of a file next to it on the card, and return them."""
    trouble = "\n".join(str(error) for error in rejected.errors)
    text = _REFUSED.format(file=rejected.errors[0].source if rejected.errors else FILE, errors=trouble)
    with contextlib.suppress(OSError):  # the card cannot be written; the console shows the errors too
        write_whole(places.refused, text.encode(), mode=0o644)
    return trouble


def digest(card: Card) -> str:
    """Return the SHA-256 of a card's file."""
    return hashlib.sha256(card.text).hexdigest()


def _read_kept(places: CardPaths) -> Card | None:
    try:
        return read(places.kept.read_bytes(), str(places.kept), IN_FORCE)
    except (FileNotFoundError, ConfigurationRejected):  # applied by another version of the program
        return None


def _require_mounted(places: CardPaths) -> None:
    """Raise OSError when the card's first partition is not mounted. Mounted, it holds the files that boot."""
    if not any(places.card.iterdir()):
        raise OSError(errno.ENODEV, "it is not mounted")


def _read_card(places: CardPaths) -> Card | None:
    """Return the settings in the file on the card, if any.

    Raises ConfigurationRejected, and OSError when the first partition cannot be read.
    """
    try:
        with places.file.open("rb") as file:
            return read(file.read(FILE_BYTES_MAX + 1), FILE)
    except FileNotFoundError:
        return None


def _write_files(places: CardPaths, card: Card) -> None:
    """Write the files of the settings. Repeating it changes nothing."""
    made = rendering.files(card)
    for name in rendering.ALL:
        if name in made:
            write_whole(places.root / name, made[name].text.encode(), mode=made[name].mode)
        else:
            (places.root / name).unlink(missing_ok=True)
    if card.spec.ssh_keys:
        write_whole(places.ssh_keys, "".join(f"{key}\n" for key in card.spec.ssh_keys).encode(), mode=0o600)
    else:
        places.ssh_keys.unlink(missing_ok=True)
    _name_machine(places, card.hostname)
    write_gateway_settings(places.data, card)


def _name_machine(places: CardPaths, name: str) -> None:
    if places.root == Path("/"):
        socket.sethostname(name)
    write_whole(places.root / "run/waypost-settings/hostname", f"{name}\n".encode(), mode=0o644)


def write_gateway_settings(data: Path, card: Card) -> None:
    """Write the gateway's settings into its data directory, owned by the directory's user. Raises OSError."""
    hub = card.spec.hub
    wanted = FirstBootSettings(
        settings=digest(card),
        name=card.name,
        url=None if hub is None else hub.url,
        failover=() if hub is None else hub.failover,
        proxy=None if hub is None else hub.proxy,
        token=None if hub is None else hub.token,
        forward=() if hub is None else hub.forward,
        keep_free=card.spec.data.keep_free,
    )
    _write_for_gateway(data, WANTED, msgspec.json.encode(wanted))


def record_refusal(data: Path, refusal: SettingsRefusal | None) -> None:
    """Let the gateway report why settings of the card are not applied, or that they are. Raises OSError."""
    if refusal is not None:
        _write_for_gateway(data, REFUSAL, msgspec.json.encode(refusal))
    elif not (data / FOLDER).is_symlink():
        (data / FOLDER / REFUSAL).unlink(missing_ok=True)


def _write_for_gateway(data: Path, name: str, content: bytes) -> None:
    """Write a file of a first boot, owned by the user of the data directory, unless it has this content. Raises
    OSError."""
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = data / FOLDER
    owner = data.stat().st_uid, data.stat().st_gid
    folder.mkdir(exist_ok=True, mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):  # a link by the gateway's user would give it the target
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if (found.st_uid, found.st_gid) != owner:
        os.chown(folder, *owner, follow_symlinks=False)
    if not (folder / name).exists() or (folder / name).read_bytes() != content:
        write_whole(folder / name, content, mode=0o600, owner=owner)


def _remove_secrets(places: CardPaths) -> None:
    """Replace the file on the card by a copy without secrets."""
    text = places.file.read_bytes() if places.file.exists() else b""
    card = read(text, FILE) if text else None
    if card is not None:
        write_whole(places.applied, text_of(without_secrets(plain_of(text, FILE))).encode(), mode=0o644)
        places.file.rename(places.ended)
        sync_path(places.card)
    remove_secret(places.ended)
    places.refused.unlink(missing_ok=True)
