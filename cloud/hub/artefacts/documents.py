"""Documents of artefacts in the API of a hub. Times are milliseconds since 1970, UTC."""

from __future__ import annotations

import msgspec

from bridge.artefacts.envelope import open_envelope
from bridge.artefacts.manifest import decode_manifest
from cloud.hub.artefacts.limits import PART_BYTES
from cloud.hub.artefacts.service import WaitingUpload
from cloud.hub.registry.artefacts import ArtefactKeyRow, ArtefactRow


class ArtefactDocument(msgspec.Struct, kw_only=True):
    """Artefact of a tenant."""

    tenant: str
    name: str
    version: str
    kind: str
    """``firmware``, ``configuration`` or ``model``."""
    sequence: int
    boards: list[str]
    from_versions: list[str]
    """Versions over which it may be installed; empty: over any."""
    size: int
    sha256: str
    """SHA-256 of the image, hexadecimal."""
    not_before: int | None
    """Time from which it is valid; null: from the beginning."""
    key: str
    """Id of the key of its signature."""
    state: str
    """``waiting`` for its image, or ``stored``."""
    added_at: int
    added_by: str
    stored_at: int | None
    """Time at which its image was complete and verified."""


class ArtefactUpload(msgspec.Struct, kw_only=True):
    """Artefact with what is missing of its image."""

    artefact: ArtefactDocument
    part_bytes: int
    """Bytes of a part; the last one may be shorter."""
    parts: int
    """Number of parts."""
    missing: list[int]
    """Numbers of the parts that are missing, from 0 on."""


class StoredPart(msgspec.Struct, kw_only=True):
    """Part of an image that was stored."""

    number: int
    bytes: int


class ArtefactPage(msgspec.Struct, kw_only=True):
    """Page of artefacts, by tenant, name and sequence."""

    artefacts: list[ArtefactDocument]
    next: str | None
    """Value of `after` for the next page; null on the last one."""


class ArtefactKeyDocument(msgspec.Struct, kw_only=True):
    """Trusted public key of a maker."""

    tenant: str
    id: str
    label: str
    pem: str
    added_at: int
    added_by: str


class ArtefactKeyList(msgspec.Struct, kw_only=True):
    """Trusted keys of a tenant, the oldest first."""

    keys: list[ArtefactKeyDocument]


class RemovedArtefactKey(msgspec.Struct, kw_only=True):
    """Key that is trusted no longer."""

    tenant: str
    id: str


class NewArtefactKey(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Key to trust."""

    pem: str
    """Public key in PEM."""
    label: str = ""
    """Text for people."""


def artefact_document(row: ArtefactRow) -> ArtefactDocument:
    """Return the document of an artefact."""
    manifest = decode_manifest(open_envelope(row.envelope).payload)
    return ArtefactDocument(
        tenant=row.tenant,
        name=row.name,
        version=row.version,
        kind=row.kind,
        sequence=row.sequence,
        boards=list(manifest.boards),
        from_versions=list(manifest.from_versions),
        size=row.size,
        sha256=row.sha256,
        not_before=None if manifest.not_before is None else manifest.not_before * 1_000,
        key=row.key_id,
        state="waiting" if row.stored_at is None else "stored",
        added_at=row.added_at // 1_000,
        added_by=row.added_by,
        stored_at=None if row.stored_at is None else row.stored_at // 1_000,
    )


def upload_document(upload: WaitingUpload) -> ArtefactUpload:
    """Return the document of an upload."""
    return ArtefactUpload(
        artefact=artefact_document(upload.row),
        part_bytes=PART_BYTES,
        parts=-(-upload.row.size // PART_BYTES),
        missing=upload.missing,
    )


def key_document(row: ArtefactKeyRow) -> ArtefactKeyDocument:
    """Return the document of a trusted key."""
    return ArtefactKeyDocument(
        tenant=row.tenant,
        id=row.id,
        label=row.label,
        pem=row.pem,
        added_at=row.added_at // 1_000,
        added_by=row.added_by,
    )
