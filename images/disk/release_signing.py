"""Sign images and bundles that another machine has built, with a key that was never there.

The building machine gets the certificate only: gateways recognise it, and its own test key signs in the meantime. Here
that signature is verified first, so that only what the builder made is signed. A system is signed only if gateways that
run it trust exactly the named keys, which is read from the system itself.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bridge.block_index import SUFFIX, BlockIndex, BlockIndexError
from images.disk import bundle, filesystem, signing, trust
from images.disk.bundle import UpdateBundle
from images.disk.signing import SigningKeys
from images.errors import INTEGRITY, USAGE, ImageError
from images.programs import require, run, run_for_output

SUMS: Final = ".sha256"
BUNDLE: Final = ".raucb"
PROGRAMS: Final = {SUMS: "openssl", BUNDLE: "rauc"}
"""Program that signs each kind of file."""
BUILDER_OPTION: Final = "--builder-certificate"
COMPARED_BYTES: Final = 1 << 20
AGAIN: Final = "copy the files from the building machine again; nothing was signed"


class ReleaseSigner(NamedTuple):
    """Signs files of one building machine with one key."""

    keys: SigningKeys
    builder: Path
    """Certificate of the building machine's own key (PEM)."""
    work: Path
    """Folder for results, until they are copied to their place."""
    trusts: tuple[Path, ...] = ()
    """Certificates that each system has to trust (PEM), and no others; none: that of `keys`."""

    def sign_checksums(self, sums: Path) -> Path:
        """Return the new signature of an image's checksums. Raises ImageError.

        The files that they name have to be next to them, and are compared. Checksums with this signature already are
        signed again, so an interrupted command can be repeated.
        """
        signature = sums.with_name(f"{sums.name}.p7s")
        if not signature.is_file():
            hint = "copy all files of the image to the same folder"
            raise ImageError(f"{signature} does not exist", hint=hint, code=USAGE)
        try:
            signing.verify(sums, self._accepted(), self._log_of(sums))
        except ImageError as error:
            raise self._foreign(sums, error.message) from None
        images = []
        for line in sums.read_text("utf-8", "replace").splitlines():
            digest, _, name = line.partition("  ")
            file = sums.parent / Path(name).name
            if not file.is_file():
                hint = "copy all files of the image to the same folder"
                raise ImageError(f"{file} does not exist, and {sums.name} names it", hint=hint, code=USAGE)
            if filesystem.compute_sha256(file) != digest:
                raise ImageError(f"{file} does not match its checksum", hint=AGAIN, code=INTEGRITY)
            if file.name.endswith(trust.IMAGES):
                images.append(file)
        if not images:
            hint = f"an image is X{trust.IMAGES[0]} or X{trust.IMAGES[1]}"
            raise ImageError(f"{sums} names no image", hint=hint, code=INTEGRITY)
        for file in images:
            self._require_trust(trust.read_image(file, self.work), file)
        copy = self.work / sums.name
        copy.write_bytes(sums.read_bytes())
        return signing.sign(copy, self.keys, self._log_of(sums))

    def sign_bundle(self, file: Path) -> UpdateBundle:
        """Return the bundle with the new signature, and the index of its blocks next to it. Raises ImageError.

        RAUC verifies the old signature and every block. The blocks stay at their places, so their index changes in the
        checksum and size of the bundle only.
        """
        index = _read_index(file)
        target = self.work / file.name
        own = self.keys.certificate
        keyrings = ("--keyring", self._accepted(), "--signing-keyring", own)
        try:
            run(
                "rauc", "resign", *keyrings, "--cert", own, "--key", self.keys.key, file, target, log=self._log_of(file)
            )
        except ImageError as error:
            raise self._foreign(file, error.message) from None
        end = index.blocks[-1].end if index.blocks else 0
        if not _begin_equally(file, target, end):
            raise ImageError(
                f"{file.name}: rauc has moved its blocks", hint="report this with `rauc --version`", code=INTEGRITY
            )
        self._require_trust(trust.read_bundle(target, self.work), file)
        renewed = msgspec.structs.replace(index, sha256=filesystem.compute_sha256(target), size=target.stat().st_size)
        target.with_name(f"{target.name}{SUFFIX}").write_bytes(renewed.encode())
        return _describe(target)

    def _log_of(self, file: Path) -> Path:
        return self.work / f"{file.name}.log"

    def _accepted(self) -> Path:
        """Return a file with the certificates by which a file is recognised: of the builder, and of this key."""
        both = self.work / "accepted.pem"
        both.write_text("".join(sorted(trust.read_certificates((self.builder, self.keys.certificate)))))
        return both

    def _require_trust(self, found: frozenset[str], file: Path) -> None:
        """Raise ImageError unless a system trusts exactly the named certificates."""
        named = self.trusts or (self.keys.certificate,)
        expected = trust.read_certificates(named)
        if found == expected:
            return
        words = [f"{file}: gateways that run it would not trust exactly {', '.join(map(str, named))}"]
        words += [f"  refused: {each}" for each in named if not trust.read_certificates((each,)) <= found]
        if builders := trust.read_certificates((self.builder,)) & found:
            words.append("  accepted: the test key of the building machine")
        if others := len(found - expected - builders):
            words.append(f"  accepted: {others} more")
        hint = "build it with --certificate; if it has to trust other or more keys, name all with --trusts"
        raise ImageError("\n".join(words), hint=f"{hint}; nothing was signed", code=INTEGRITY)

    def _foreign(self, file: Path, why: str) -> ImageError:
        """Return the error for a file that the building machine did not sign, or that has changed since."""
        words = f"{file} was not signed by the key of {self.builder}, or it has changed since"
        hint = f"{BUILDER_OPTION} names the certificate of the machine that built it (development-key in its cache)"
        return ImageError(f"{words}\n{why}".rstrip(), hint=f"{hint}; else {AGAIN}", code=INTEGRITY)


def check_files(files: Sequence[Path], out: Path) -> None:
    """Raise ImageError if a file cannot be signed or would be replaced by its result, before the first is signed."""
    for file in files:
        if file.suffix not in PROGRAMS:
            hint = f"name checksums of images (X{SUMS}) and bundles (X{BUNDLE})"
            raise ImageError(f"{file} is neither of an image nor a bundle", hint=hint, code=USAGE)
        if file.suffix == BUNDLE and out.resolve() in (file.resolve().parent, file.parent.resolve()):
            hint = "--out names another folder for the signed ones"
            raise ImageError(f"{file} would be replaced", hint=hint, code=USAGE)
    names = [file.name for file in files]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ImageError(f"two files have the name {', '.join(twice)}", hint="sign them one by one", code=USAGE)
    programs = [each for file in files for each in (PROGRAMS[file.suffix], *trust.PROGRAMS[file.suffix])]
    require(*dict.fromkeys(("openssl", *programs)))


# --- inside ---------------------------------------------------------------------------------------------------------


def _read_index(file: Path) -> BlockIndex:
    """Return the index next to a bundle. Raises ImageError unless it is that of this bundle."""
    place = file.with_name(f"{file.name}{SUFFIX}")
    try:
        index = BlockIndex.decode(place.read_bytes())
    except OSError as error:
        hint = f"copy it from the building machine, next to {shlex.quote(str(file))}"
        raise ImageError(f"{place}: {error.strerror}", hint=hint, code=USAGE) from None
    except BlockIndexError as error:
        raise ImageError(f"{place}: {error}", hint=AGAIN, code=INTEGRITY) from None
    if (index.sha256, index.size) != (filesystem.compute_sha256(file), file.stat().st_size):
        raise ImageError(f"{place} is not the index of {file.name}", hint=AGAIN, code=INTEGRITY)
    return index


def _begin_equally(one: Path, other: Path, count: int) -> bool:
    """Return whether the first `count` bytes of two files are equal."""
    with one.open("rb") as left, other.open("rb") as right:
        while count > 0:
            size = min(count, COMPARED_BYTES)
            piece = left.read(size)
            if len(piece) != size or piece != right.read(size):
                return False
            count -= size
    return True


def _describe(file: Path) -> UpdateBundle:
    """Return a bundle with the version and build in its manifest."""
    told = json.loads(run_for_output("rauc", "info", "--no-verify", "--output-format=json", file))
    return bundle.UpdateBundle(file, str(told["version"]), str(told["build"]))
