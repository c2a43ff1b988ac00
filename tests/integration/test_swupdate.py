"""SWUpdate, as Debian packages it, updates itself from a gateway over hawkBit's DDI."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.artefacts import KEY, sealed
from tests.support.certificates import Authority
from tests.support.command import items_in
from tests.support.cut_link import CutLink
from tests.support.enrolled import EnrolledFleet
from tests.support.lake import rows
from tests.support.operator import HubOperator
from tests.support.processes import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("swupdate") is None, reason="swupdate is not installed"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]

NAME = "rootfs.swu"
CONTENT = bytes(range(256)) * 1_200


def test_swupdate_updates_itself(tmp_path: Path) -> None:
    """It downloads over TLS with breaks, installs, and confirms after its restart. It pins the
    authority of the gateway's certificate and authenticates with a target token. The reports land in the lake."""
    signer, image = bundle(tmp_path)
    with EnrolledFleet(tmp_path) as fleet:
        upload(HubOperator(fleet.hub), image)
        gateway = fleet.enrol("mill")
        [user] = items_in(fleet.here("mill", "user", "add", "pump-1", "--profile", "sensor", "--json"))
        authority = listen_with_tls(fleet, "mill")
        gateway.start()
        wanted = {
            "trustedKeys": [KEY.public.pem],
            "artefacts": [{"name": NAME, "version": "1.2.0", "devices": ["pump-*"]}],
        }
        document = {"apiVersion": "waypost/v1", "kind": "Artefacts", "metadata": {"name": "gateway"}, "spec": wanted}
        fleet.fleet("config", "apply", "mill", "-f", fleet.written("artefacts.yaml", json.dumps(document)))
        held = fleet.folder / "mill" / "artefacts" / "1.image"
        wait_until(held.exists, timeout_s=120, what="the gateway holds the image")
        with CutLink(gateway.port("https")) as link:
            settings = tmp_path / "swupdate.cfg"
            settings.write_text(settings_of(link.port, authority, f"pump-1:{user['password']}"))
            link.cut_next([len(image) // 2] * 8)
            with swupdate(tmp_path, settings, signer) as log:
                wait_until(lambda: "successful !" in log.read_text(), timeout_s=45, what="it is installed")
                breaks = log.read_text().count("Channel sleeps")
                wait_until(lambda: states(fleet) == ["downloading"], timeout_s=30, what="its first report lands")
            assert breaks >= 1, "the download continued after a break"
            assert (tmp_path / "installed.bin").read_bytes() == CONTENT
            with swupdate(tmp_path, settings, signer, "-c", "2"):
                wait_until(
                    lambda: states(fleet) == ["downloading", "installed"], timeout_s=60, what="the last one lands"
                )
        fleet.fleet("revoke", "mill")


def settings_of(port: int, authority: Authority, credentials: str) -> str:
    """Return the configuration of SWUpdate."""
    token = base64.b64encode(credentials.encode()).decode()
    return f"""
globals: {{ verbose = true; loglevel = 5; }};
suricatta: {{
    tenant = "DEFAULT"; id = "pump-1"; url = "https://localhost:{port}"; polldelay = 2;
    cafile = "{authority.certificate}"; targettoken = "{token}"; retry = 10; retrywait = 1;
}};
"""


def listen_with_tls(fleet: EnrolledFleet, name: str) -> Authority:
    """Let a gateway listen for HTTPS with a certificate of an authority of its own; return the authority."""
    authority = Authority(fleet.folder / "authority")
    issued = authority.issue(name)
    [gateway] = json.loads(fleet.here(name, "get", "gateway", "-o", "json"))["items"]
    gateway["spec"]["listeners"] |= {"https": "127.0.0.1:0", "tls": issued._asdict()}
    fleet.here(name, "apply", "-f", fleet.written("gateway.json", json.dumps(gateway)))
    return authority


def upload(hub: HubOperator, image: bytes) -> None:
    """Upload the bundle as an artefact for one board."""
    assert hub.send("POST", "artefact-keys", {"pem": KEY.public.pem, "label": "Maker"}).status == 201
    assert hub.send("POST", "artefacts", sealed(image, name=NAME), "application/cose").status == 201
    assert hub.send("PUT", f"artefacts/{NAME}/1.2.0/parts/0", image, "application/octet-stream").status == 200
    assert hub.send("POST", f"artefacts/{NAME}/1.2.0/complete").status == 200


def states(fleet: EnrolledFleet) -> list[str]:
    """Return the reported states in the lake, in order."""
    found = [row for row in rows(fleet.lake, "telemetry") if row["address"] == "plant/pump-1/artefact-report"]
    return [json.loads(row["body"])["state"] for row in sorted(found, key=lambda row: int(row["sequence"]))]


@contextmanager
def swupdate(folder: Path, settings: Path, signer: Path, *confirmation: str) -> Iterator[Path]:
    """Run SWUpdate as a daemon; yield its log."""
    log = folder / f"swupdate{len(confirmation)}.log"
    words = ("-f", str(settings), "-k", str(signer), "-H", "board:1.0", "-M", "-m", "-u", " ".join(confirmation))
    with log.open("w") as output:
        process = subprocess.Popen(
            ["swupdate", *words], stdout=output, stderr=output, env={**os.environ, "TMPDIR": str(folder)}
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(20)


# --- the bundle ----------------------------------------------------------------------------------------------------


def bundle(folder: Path) -> tuple[Path, bytes]:
    """Return the certificate of a signer, and a bundle that installs one file."""
    certificate, key = folder / "signer.pem", folder / "signer.key"
    description, signature = folder / "sw-description", folder / "sw-description.sig"
    checksum = hashlib.sha256(CONTENT).hexdigest()
    description.write_text(f"""
software = {{
    version = "1.2.0";
    hardware-compatibility: [ "1.0" ];
    files: ( {{ filename = "content.bin"; path = "{folder}/installed.bin"; sha256 = "{checksum}"; }} );
}}
""")
    openssl(
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=signer",
        "-addext", "extendedKeyUsage=emailProtection", "-keyout", str(key), "-out", str(certificate),
    )  # fmt: skip
    openssl(
        "cms", "-sign", "-binary", "-nosmimecap", "-outform", "DER", "-in", str(description), "-out", str(signature),
        "-signer", str(certificate), "-inkey", str(key),
    )  # fmt: skip
    files = {each.name: each.read_bytes() for each in (description, signature)} | {"content.bin": CONTENT}
    return certificate, cpio(files)


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def cpio(files: dict[str, bytes]) -> bytes:
    """Return an archive in the format "new ASCII with checksums", which SWUpdate takes."""
    made = bytearray()
    for number, (name, content) in enumerate([*files.items(), ("TRAILER!!!", b"")], 1):
        fields = (number, 0o100_644, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, sum(content) & 0xFFFFFFFF)
        made += b"070702" + "".join(f"{each:08x}" for each in fields).encode() + name.encode() + b"\0"
        made += bytes(-len(made) % 4) + content
        made += bytes(-len(made) % 4)
    return bytes(made)
