"""Certificates for tests, issued by the openssl command: an authority and its certificates."""

from __future__ import annotations

import datetime
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Issued(NamedTuple):
    """Paths of a certificate and its key, as text."""

    certificate: str
    key: str


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = str(folder / "ca.pem")
        self.key = str(folder / "ca.key")
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", self.key, "-out", self.certificate,
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def subordinate(self, folder: Path, name: str) -> Authority:
        """Create an authority with a certificate of this one."""
        made = Authority(folder, name)
        request = str(folder / "ca.csr")
        _openssl("x509", "-x509toreq", "-in", made.certificate, "-signkey", made.key, "-out", request)
        (folder / "ca.cnf").write_text("basicConstraints=critical,CA:true\nkeyUsage=critical,keyCertSign,cRLSign\n")
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial",
            "-days", "2", "-out", made.certificate, "-extfile", str(folder / "ca.cnf"),
        )  # fmt: skip
        return made

    def issue(
        self,
        name: str,
        *,
        file: str | None = None,
        days: int = 2,
        usage: str | None = None,
        uri: str | None = None,
        responder: str | None = None,
    ) -> Issued:
        """Sign a certificate for `name` (and for this machine's loopback), in files called `file`.

        `days`: life, negative for an expired certificate; `usage`: its extendedKeyUsage, as openssl spells it; `uri`: a
        URI in addition to the host names; `responder`: URL for OCSP, which `register` lets know it.
        """
        stem = self.folder / (file or name)
        request, certificate, key = (str(stem) + end for end in (".csr", ".pem", ".key"))
        _openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", f"/O=tests/CN={name}", "-keyout", key, "-out", request,
            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1" + (f",URI:{uri}" if uri else ""),
            *(("-addext", f"extendedKeyUsage={usage}") if usage else ()),
            *(("-addext", f"authorityInfoAccess=OCSP;URI:{responder}") if responder else ()),
        )  # fmt: skip
        if days < 0:
            self._sign_ended(request, certificate, days)
        else:
            _openssl(
                "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial",
                "-days", str(days), "-out", certificate, "-copy_extensions", "copy",
            )  # fmt: skip
        return Issued(certificate, key)

    def _sign_ended(self, request: str, certificate: str, days: int) -> None:
        """Sign an expired certificate, which began a day before its end; `openssl x509` refuses past ends
        from 3.5 on.
        """
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        begin = end - datetime.timedelta(days=1)
        times = ("-startdate", f"{begin:%Y%m%d%H%M%SZ}", "-enddate", f"{end:%Y%m%d%H%M%SZ}")
        self._ca("-batch", "-notext", "-in", request, "-out", certificate, "-outdir", str(self.folder), *times)

    def register(self, issued: Issued) -> None:
        """Make the certificate known to OCSP as valid."""
        self._ca("-valid", issued.certificate)

    @property
    def index(self) -> str:
        """File of the certificates that are registered or revoked."""
        return str(self.folder / "index")

    def revoke(self, issued: Issued) -> None:
        """Add the certificate to later revocation lists."""
        self._ca("-revoke", issued.certificate)

    def revocations(self, *, der: bool = False, begins: str | None = None, ends: str | None = None) -> bytes:
        """Return the revocation list; `begins`, `ends`: YYYYMMDDHHMMSSZ, by default a day from now."""
        times = ["-crl_lastupdate", begins, "-crl_nextupdate", ends] if begins and ends else ["-crldays", "1"]
        made = self.folder / "made.crl"
        self._ca("-gencrl", *times, "-out", str(made))
        if der:
            _openssl("crl", "-in", str(made), "-outform", "DER", "-out", str(made))
        return made.read_bytes()

    def _ca(self, *arguments: str) -> None:
        index, settings, number = (self.folder / name for name in ("index", "crl.cnf", "crlnumber"))
        if not settings.exists():
            index.touch()
            number.write_text("01\n")
            content = f"[ca]\ndefault_ca=own\n[own]\ndatabase={index}\ncrlnumber={number}\ndefault_md=sha256\n"
            content += "rand_serial=yes\ncopy_extensions=copy\nunique_subject=no\npolicy=any\n"
            content += "[any]\norganizationName=optional\ncommonName=supplied\n"
            settings.write_text(content)
        _openssl("ca", "-config", str(settings), "-cert", self.certificate, "-keyfile", self.key, *arguments)

    def context(self, issued: Issued | None = None) -> ssl.SSLContext:
        """Return a client's context that trusts this authority and can present `issued`."""
        context = ssl.create_default_context(cafile=self.certificate)
        if issued is not None:
            context.load_cert_chain(issued.certificate, issued.key)
        return context


class FleetCertificates:
    """Certificates of many gateways with one key, signed within milliseconds."""

    def __init__(self, authority: Authority) -> None:
        self._folder = authority.folder / "fleet"
        self._folder.mkdir()
        self._authority = authority.certificate
        self._issuer = x509.load_pem_x509_certificate(Path(authority.certificate).read_bytes())
        self._signer = _private_key(Path(authority.key))
        self._key = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PrivateFormat.PKCS8
        plain = self._key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        self._key_file = self._folder / "gateway.key"
        self._key_file.write_bytes(plain)

    def context(self, name: str) -> ssl.SSLContext:
        """Return a context of a gateway; its certificate is made at the first use."""
        path = self._folder / f"{name}.pem"
        if not path.exists():
            path.write_bytes(self._certificate(name).public_bytes(serialization.Encoding.PEM))
        context = ssl.create_default_context(cafile=self._authority)
        context.load_cert_chain(path, self._key_file)
        return context

    def _certificate(self, name: str) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return (
            x509.CertificateBuilder(self._issuer.subject, subject, self._key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .sign(self._signer, hashes.SHA256())
        )


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
