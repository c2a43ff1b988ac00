"""Static files of a console: scripts, styles and icons, with addresses that change with their content.

A page refers to ``/ui/DIGEST/NAME``, where the digest covers all files of the console. So browsers may keep each file
for ever, a second visit loads the page only, and a page never mixes the files of two versions.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute

PREFIX: Final = "/ui/"
MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types by suffix. Files with another suffix are not served."""
DIGEST_LENGTH: Final = 12
FOREVER: Final = {"Cache-Control": "max-age=31536000, immutable"}
"""Fields of a file that never changes. It has no data, so other sites may load it too; 30 files come with them."""
_BARE_IMPORT: Final = re.compile(rb'(\bfrom\s*|\bimport\s*)"([a-z]+)"')
"""Import of a package by its name, as npm's packages do."""
_GLOBAL: Final = re.compile(rb"^var (\w+)=function\(\)\{", re.MULTILINE)
"""Begin of a library that is published as a script with one global variable."""


class StaticAssets:
    """Files of one console, compressed in memory (about 50 kB)."""

    def __init__(self, folders: Sequence[Traversable]) -> None:
        """Read all files of the folders and of their subfolders; a later folder replaces a file of the same name."""
        files = {name: content for folder in folders for name, content in _read(folder, "")}
        digest = hashlib.sha256()
        for name in sorted(files):
            digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
        self.base: Final = f"{PREFIX}{digest.hexdigest()[:DIGEST_LENGTH]}/"
        """Address of the files, with a slash at its end."""
        self._files = {self.base + name: gzip.compress(content, mtime=0) for name, content in files.items()}

    @property
    def routes(self) -> list[HttpRoute]:
        """Routes of the files. They need no authentication: the page that signs a user in uses them."""
        return [HttpRoute(PREFIX + "{name:path}", self.respond, methods=PURE)]

    async def respond(self, request: Request) -> Response:
        """Answer with a file; 404 for a name or a digest that is not of this version."""
        path = request.scope["path"]
        compressed = self._files.get(path)
        if compressed is None:
            return RequestRefused(
                404, f"{path} is not part of this console", next_step="load the page again"
            ).response()
        fields = {**FOREVER, "Vary": "Accept-Encoding", "Content-Type": MEDIA_TYPES[_suffix(path)]}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(compressed, headers={**fields, "Content-Encoding": "gzip"})
        return Response(gzip.decompress(compressed), headers=fields)


def _read(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _read(entry, f"{prefix}{entry.name}/")
        elif _suffix(entry.name) in MEDIA_TYPES:
            # Browsers resolve such an import only with an inline import map, which the content policy excludes; and a
            # script can be loaded later only as a module. The files on disk stay as they were published.
            content = _BARE_IMPORT.sub(rb'\1"./\2.mjs"', entry.read_bytes())
            library = _GLOBAL.search(content) if prefix and entry.name.endswith(".js") else None
            exported = b"\nexport default %s;\n" % library[1] if library is not None else b""
            yield prefix + entry.name, content + exported


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
