"""The key that images and updates are signed with: a certificate and its key, as RAUC takes them.

For trying out one is made beside the results of the build, for this machine alone. Who hands images to others names
his own (`--key`, `--certificate`); no key is ever part of the project or of an image.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final, NamedTuple

from images.errors import USAGE, ImageError
from images.programs import output, require, run

SUBJECT: Final = "/CN=Waypost development, this machine only"
DAYS: Final = "3650"


class Keys(NamedTuple):
    """PEM files."""

    key: Path
    certificate: Path


def keys(cache: Path, key: Path | None, certificate: Path | None) -> Keys:
    """Those named, or the development pair of this machine, made when it is not there. Raises ImageError."""
    if (key is None) != (certificate is None):
        raise ImageError("--key and --certificate go together", code=USAGE)
    require("openssl")
    if key is not None and certificate is not None:
        of_key = _public(key, "a key", "pkey", "-pubout")
        if of_key != _public(certificate, "a certificate", "x509", "-noout", "-pubkey"):
            raise ImageError(f"{certificate} is not the certificate of {key}", hint="name the pair", code=USAGE)
        return Keys(key, certificate)
    return _development(cache / "development-key")


def _public(file: Path, what: str, *command: str) -> str:
    """The public key in a file. Raises ImageError."""
    try:
        return output("openssl", *command, "-in", file)
    except ImageError as error:
        why = error.message.partition("\n")[2].partition("\n")[0]
        raise ImageError(f"{file} is not {what} (PEM): {why}", hint="name the pair", code=USAGE) from None


def _development(folder: Path) -> Keys:
    """The pair of this machine. Of two builds that begin at once one makes it: else it were the key of one and the
    certificate of the other, for ever. Raises ImageError."""
    pair = Keys(folder / "key.pem", folder / "certificate.pem")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not pair.certificate.exists():
                _make(pair, folder / "fresh.pem", folder / "log")
    except OSError as error:
        raise ImageError(f"{error.filename or folder}: {error.strerror}", hint="choose another --cache") from None
    return pair


def _make(pair: Keys, fresh: Path, log: Path) -> None:
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", DAYS, "-subj", SUBJECT)
    before = os.umask(0o077)
    try:
        run("openssl", "req", "-x509", *kind, "-keyout", pair.key, "-out", fresh, log=log)
    finally:
        os.umask(before)
    fresh.replace(pair.certificate)


def sign(file: Path, by: Keys, log: Path) -> Path:
    """A detached signature (CMS, PEM) beside a file. Raises ImageError."""
    target = file.with_name(f"{file.name}.p7s")
    options = ("-binary", "-outform", "PEM", "-md", "sha256", "-nocerts", "-noattr")
    run(
        "openssl",
        "cms",
        "-sign",
        *options,
        "-signer",
        by.certificate,
        "-inkey",
        by.key,
        "-in",
        file,
        "-out",
        target,
        log=log,
    )
    return target


def verify(file: Path, certificate: Path, log: Path) -> None:
    """Raises ImageError where the signature beside a file is not this certificate's, or of another file."""
    options = ("-binary", "-inform", "PEM", "-content", file, "-purpose", "any", "-CAfile", certificate)
    signature = file.with_name(f"{file.name}.p7s")
    run("openssl", "cms", "-verify", *options, "-certfile", certificate, "-in", signature, "-out", "/dev/null", log=log)
