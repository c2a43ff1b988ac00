"""Keys that sign images and updates: a certificate and its key, as RAUC takes them.

Without a pair one is made for this machine, next to the results of the build, for trials. Whoever releases images names
their own (`--key`, `--certificate`), or the certificate alone: then another machine with the key signs the results
(`images.disk.release_signing`). No key is part of the project or of an image.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from images.errors import USAGE, ImageError
from images.programs import require, run, run_for_output

SUBJECT: Final = "/CN=Waypost development, this machine only"
DAYS: Final = "3650"
CERTIFICATE: Final = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----")


class SigningKeys(NamedTuple):
    """Key and certificate, as PEM files."""

    key: Path
    certificate: Path
    trusted: tuple[Path, ...] = ()
    """Certificates of other keys. Gateways accept their updates too."""
    release: Path | None = None
    """Certificate of a key that is on another machine. Gateways recognise it instead of `certificate`."""

    @property
    def keyring(self) -> bytes:
        """Certificates by which gateways recognise updates (PEM), of the release first. Raises ImageError.

        OpenSSL writes them again: nothing else in those files gets into an image.
        """
        named = (self.release or self.certificate, *self.trusted)
        return "".join(run_for_output("openssl", "x509", "-in", each) for each in named).encode()


def load_keys(cache: Path, key: Path | None, certificate: Path | None, trusted: Sequence[Path] = ()) -> SigningKeys:
    """Return the named pair, or the development pair of this machine, made on first use. Raises ImageError.

    `certificate` without `key`: gateways recognise that certificate only; the development key signs until its own key
    does, on another machine. `trusted`: certificates of other keys that gateways accept too, as of the next key.
    """
    if key is not None and certificate is None:
        raise ImageError("--key and --certificate go together", code=USAGE)
    require("openssl")
    for each in trusted:
        require_certificate(each)
    if key is not None and certificate is not None:
        of_key = _read_public_key(key, "a key", "pkey", "-pubout")
        if of_key != _read_certified_key(certificate):
            raise ImageError(f"{certificate} is not the certificate of {key}", hint="name a matching pair", code=USAGE)
        return SigningKeys(key, certificate, tuple(trusted))
    if certificate is not None:
        require_certificate(certificate)
    own = _load_development_keys(cache / "development-key")
    if certificate is not None:
        require_other_keys(own.certificate, (certificate, *trusted))
    return own._replace(trusted=tuple(trusted), release=certificate)


def require_certificate(file: Path) -> None:
    """Raise ImageError unless a file has one certificate (PEM), and no private key."""
    _read_certified_key(file)


def require_other_keys(builder: Path, certificates: Sequence[Path]) -> None:
    """Raise ImageError if a certificate that gateways have to trust is that of a building machine's test key."""
    test_key = _read_certified_key(builder)
    for each in certificates:
        if _read_certified_key(each) == test_key:
            words = f"{each} is of the test key of the building machine, which gateways must not trust"
            raise ImageError(words, hint="name the certificate of the key that signs releases", code=USAGE)


def _read_certified_key(file: Path) -> str:
    """Return the public key in a file with one certificate and no private key. Raises ImageError."""
    found = _read_public_key(file, "a certificate", "x509", "-noout", "-pubkey")
    content = file.read_bytes()
    if b"PRIVATE KEY" in content:
        hint = f"write the certificate alone: openssl x509 -in {shlex.quote(str(file))} -out certificate.pem"
        raise ImageError(f"{file} has a private key, which must not get into an image", hint=hint, code=USAGE)
    count = len(CERTIFICATE.findall(content))
    if count == 0:  # openssl reads DER too; RAUC does not
        hint = f"convert it: openssl x509 -in {shlex.quote(str(file))} -out certificate.pem"
        raise ImageError(f"{file} is not a certificate in PEM", hint=hint, code=USAGE)
    if count > 1:
        raise ImageError(f"{file} has {count} certificates", hint="name a file for each (--trust)", code=USAGE)
    return found


def _read_public_key(file: Path, what: str, *command: str) -> str:
    """Return the public key in a file. Raises ImageError."""
    try:
        return run_for_output("openssl", *command, "-in", file)
    except ImageError as error:
        why = error.message.partition("\n")[2].partition("\n")[0]
        raise ImageError(f"{file} is not {what} (PEM): {why}", hint="name a matching pair", code=USAGE) from None


def _load_development_keys(folder: Path) -> SigningKeys:
    """Return the pair of this machine.

    A lock lets one of two concurrent builds make it; without it the pair could be the key of one and the certificate of
    the other. Raises ImageError.
    """
    pair = SigningKeys(folder / "key.pem", folder / "certificate.pem")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not pair.certificate.exists():
                _make(pair, folder / "fresh.pem", folder / "log")
    except OSError as error:
        raise ImageError(f"{error.filename or folder}: {error.strerror}", hint="choose another --cache") from None
    return pair


def _make(pair: SigningKeys, fresh: Path, log: Path) -> None:
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", DAYS, "-subj", SUBJECT)
    before = os.umask(0o077)
    try:
        run("openssl", "req", "-x509", *kind, "-keyout", pair.key, "-out", fresh, log=log)
    finally:
        os.umask(before)
    fresh.replace(pair.certificate)


def sign(file: Path, by: SigningKeys, log: Path) -> Path:
    """Write a detached signature (CMS, PEM) next to a file, and return it. Raises ImageError."""
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
    """Raise ImageError unless the signature next to a file is valid and made with this certificate."""
    options = ("-binary", "-inform", "PEM", "-content", file, "-purpose", "any", "-CAfile", certificate)
    signature = file.with_name(f"{file.name}.p7s")
    run("openssl", "cms", "-verify", *options, "-certfile", certificate, "-in", signature, "-out", "/dev/null", log=log)
