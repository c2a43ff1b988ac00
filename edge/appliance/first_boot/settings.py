"""The card's file is taken up, once, and what has to be there at each start is made of it. Root's part.

The order is that of what may be lost: the file is first kept on the data partition (one rename: from then on it is
taken up), then the gateway is told its part, and only then it goes from the FAT partition. Cut off anywhere, the next
start goes on: a file of the same digest has been taken up. Nothing of it waits for anybody.
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

from bridge.resources.errors import ConfigurationRejected
from edge.appliance.first_boot import rendering
from edge.appliance.first_boot.journal import FirstBootSettings
from edge.appliance.first_boot.places import FOLDER, WANTED, CardPaths, remove_secret, write_whole
from edge.broker.security.private_file import sync_folder
from edge.card.location import FILE
from edge.card.resource import FILE_BYTES_MAX, IN_FORCE, Card, plain_of, read
from edge.card.text import text_of, without_secrets

_REFUSED: Final = """\
The settings in {file} were not taken up; those before are in force. Correct the file and start the gateway again.

{errors}
"""


class AppliedSettings(NamedTuple):
    """What a start found."""

    card: Card | None
    """In force; None: nobody has said anything yet."""
    new: bool
    """It was taken up now."""
    trouble: str | None
    """Why the file on the card was not."""
    unread: str | None = None
    """Why the card's first partition cannot be read: a file there has not been seen."""


def take_up(places: CardPaths) -> AppliedSettings:
    """Look for new settings, and make what those in force ask for. Raises OSError."""
    card, new = _kept(places), False
    trouble = unread = None
    try:
        found = _on_card(places)
    except OSError as error:
        unread = error.strerror or str(error)
    except ConfigurationRejected as rejected:
        trouble = "\n".join(str(error) for error in rejected.errors)
        with contextlib.suppress(OSError):  # a card that cannot be written to; the console says it as well
            write_whole(places.refused, _REFUSED.format(file=FILE, errors=trouble).encode(), mode=0o644)
    else:
        if found is not None:
            new = card is None or digest(found) != digest(card)
            card = found
            write_whole(places.kept, found.text, mode=0o600)
    if card is not None:
        _make(places, card)
        if trouble is None and unread is None:
            _clear(places)
    return AppliedSettings(card, new, trouble, unread)


def digest(card: Card) -> str:
    """SHA-256 of the file."""
    return hashlib.sha256(card.text).hexdigest()


def _kept(places: CardPaths) -> Card | None:
    try:
        return read(places.kept.read_bytes(), str(places.kept), IN_FORCE)
    except (FileNotFoundError, ConfigurationRejected):  # an older program has taken up what this one does not know
        return None


def _on_card(places: CardPaths) -> Card | None:
    """Raises ConfigurationRejected; OSError where the first partition cannot be read."""
    if not any(places.card.iterdir()):  # where it would be mounted; U-Boot's script is on it
        raise OSError(errno.ENODEV, "it is not mounted")
    try:
        with places.file.open("rb") as file:
            return read(file.read(FILE_BYTES_MAX + 1), FILE)
    except FileNotFoundError:
        return None


def _make(places: CardPaths, card: Card) -> None:
    """All of it is the same when it is made again."""
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
    tell_gateway(places.data, card)


def _name_machine(places: CardPaths, name: str) -> None:
    if places.root == Path("/"):
        socket.sethostname(name)
    write_whole(places.root / "run/waypost-settings/hostname", f"{name}\n".encode(), mode=0o644)


def tell_gateway(data: Path, card: Card) -> None:
    """Its part of the settings, in its data directory, for the user it belongs to. Raises OSError."""
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
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = data / FOLDER
    owner = data.stat().st_uid, data.stat().st_gid
    folder.mkdir(exist_ok=True, mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):  # the gateway's user may put a link there, and would be given what it leads to
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if (found.st_uid, found.st_gid) != owner:
        os.chown(folder, *owner, follow_symlinks=False)
    text = msgspec.json.encode(wanted)
    if not (folder / WANTED).exists() or (folder / WANTED).read_bytes() != text:
        write_whole(folder / WANTED, text, mode=0o600, owner=owner)


def _clear(places: CardPaths) -> None:
    """The card keeps a copy without secrets."""
    text = places.file.read_bytes() if places.file.exists() else b""
    card = read(text, FILE) if text else None
    if card is not None:
        write_whole(places.applied, text_of(without_secrets(plain_of(text, FILE))).encode(), mode=0o644)
        places.file.rename(places.ended)
        sync_folder(places.card)
    remove_secret(places.ended)
    places.refused.unlink(missing_ok=True)
