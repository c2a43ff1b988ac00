"""Images of artefacts in a folder: parts, ranges, and parts that a power cut left."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud.hub.artefacts.image_store import FOLDER, ImageKey, ImageStore
from cloud.hub.artefacts.limits import PART_BYTES
from cloud.place.folder import Folder

IMAGE = bytes(range(256)) * 4_096 + b"end of the image"
KEY = ImageKey("acme", "0123456789abcdef" * 2, len(IMAGE))


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(Folder(tmp_path))


def part(number: int) -> bytes:
    return IMAGE[number * PART_BYTES : (number + 1) * PART_BYTES]


def put_all(store: ImageStore) -> None:
    for number in range(KEY.parts):
        store.put(KEY, number, part(number))


def test_parts_are_missing_until_they_are_put(store: ImageStore) -> None:
    assert (KEY.parts, KEY.part_bytes(0), KEY.part_bytes(1)) == (2, PART_BYTES, 16)
    assert store.missing(KEY) == [0, 1]
    store.put(KEY, 1, part(1))
    assert store.missing(KEY) == [0]
    put_all(store)
    assert store.missing(KEY) == []
    assert b"".join(store.parts(KEY)) == IMAGE
    store.sync(KEY)


@pytest.mark.parametrize(("start", "size"), [(0, 10), (PART_BYTES - 4, 10), (PART_BYTES, 16), (PART_BYTES + 15, 99)])
def test_read_ends_with_its_part(store: ImageStore, start: int, size: int) -> None:
    put_all(store)
    found = store.read(KEY, start, size)
    assert found == IMAGE[start : start + len(found)]
    assert len(found) == min(size, KEY.part_bytes(start // PART_BYTES) - start % PART_BYTES)


def test_torn_part_is_replaced(store: ImageStore, tmp_path: Path) -> None:
    put_all(store)
    file = tmp_path / FOLDER / KEY.tenant / KEY.id / "00000"
    file.write_bytes(part(0)[:100])
    with pytest.raises(OSError, match="part 0"):
        store.read(KEY, 50, 100)
    assert store.missing(KEY) == [0]
    store.put(KEY, 0, part(0))
    assert b"".join(store.parts(KEY)) == IMAGE


def test_delete_leaves_other_images(store: ImageStore) -> None:
    other = KEY._replace(id="0" * 32)
    put_all(store)
    store.put(other, 0, part(0))
    store.delete(KEY)
    store.delete(KEY)
    assert (store.missing(KEY), store.missing(other)) == ([0, 1], [1])
    with pytest.raises(FileNotFoundError):
        list(store.parts(KEY))


def test_image_that_cannot_be_deleted_is_an_error(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put_all(store)
    monkeypatch.setattr(Folder, "clear", lambda _folder: None)
    with pytest.raises(OSError, match="could not be"):
        store.delete(KEY)
