"""The support archive holds useful files and none of the secrets that the test planted."""

from __future__ import annotations

import base64
import json
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest

from bridge.resources.parse import parse
from edge.appliance.doctor.bundle import LOG_BYTES_MAX, write_bundle
from edge.appliance.doctor.check import CheckContext, context_of, fail
from edge.appliance.doctor.redaction import REDACTED, Redactor
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from tests.support.certificates import Authority, Issued
from tests.support.stores import make

USER, CONNECTOR, TOKEN, OTHER = "Sesame-of-the-user", 'Con"nector&pass/word', "Tok3nOfSomebody", "HidingInALog77"
DEVICE_KEY = "a2V5IG9mIGEgZGV2aWNl"
BODY = b'{"n": 60}'


def resources(issued: Issued, authority: Authority) -> str:
    password = base64.b64encode(USER.encode()).decode()
    return f"""
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: north}}
spec:
  listeners:
    mqtts: "127.0.0.1:0"
    tls: {{certificate: "{issued.certificate}", key: "{issued.key}", clientCa: "{authority.certificate}"}}
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {{name: default}}
spec:
  authenticationService: {{name: standard}}
  connectors:
  - name: cloud
    endpointHosts: [{{host: cloud.example, port: 5671}}]
    tls: {{}}
    credentials: {{username: north, password: {json.dumps(CONNECTOR)}}}
  - name: iothub
    type: mqtt
    endpointHosts: [{{host: hub.example}}]
    tls: {{}}
    mqtt: {{service: azureIotHub, device: d1, sharedAccessKey: {DEVICE_KEY}}}
---
apiVersion: user.enmasse.io/v1beta1
kind: MessagingUser
metadata: {{name: default.alice}}
spec:
  username: alice
  authentication: {{type: password, password: {password}}}
  authorization: [{{operations: [send], addresses: ["#"]}}]
"""


@pytest.fixture
def around(tmp_path: Path) -> CheckContext:
    authority = Authority(tmp_path / "pki")
    issued = authority.issue("gateway")
    data = tmp_path / "data"
    make(data)
    Repository(data).apply(parse(KINDS, resources(issued, authority), "x"))
    key = Path(issued.key).read_text()
    lines = [
        f"12:00 INFO connected with {CONNECTOR}",
        f"12:01 WARNING login alice password={OTHER} failed",
        f'{{"token": "{TOKEN}", "user": "alice"}}',
        f"GET / Authorization: Bearer {TOKEN}",
        f"amqps://north:{quote(CONNECTOR, safe='')}@cloud.example:5671",
        f"https://user:{OTHER}@proxy:3128/",
        f"base64 {base64.b64encode(CONNECTOR.encode()).decode()}",
        f"sasl PLAIN {base64.b64encode(USER.encode()).decode()}",
        "$argon2id$v=19$m=19456,t=2,p=1$c2FsdA$aGFzaGhhc2g",
        "$7$101$c2FsdA==$aGFzaGhhc2g=",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJlc2ln",
        "Endpoint=sb://x/;SharedAccessKeyName=k;SharedAccessKey=QUJDREVGR0hJSg==;EntityPath=e",
        key,
        f"the key {DEVICE_KEY} in words",
        "a line that helps: queue/jobs is full",
    ]
    (data / "gateway.log").write_text("\n".join(lines) + "\n")
    return context_of(data, running=False, environment={"WAYPOST_TOKEN": TOKEN}, timeout_s=1)


def unpacked(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        files = {}
        for entry in archive.getmembers():
            content = archive.extractfile(entry)
            assert content is not None
            files[entry.name.removeprefix("waypost-doctor/")] = content.read()
        return files


def test_archive_contains_no_secret(around: CheckContext, tmp_path: Path) -> None:
    results = [fail("x", f"refused: password {CONNECTOR}", f"use token={TOKEN}")]
    target = tmp_path / "bundle.tar.gz"
    write_bundle(target, around, results)
    files = unpacked(target)
    everything = b"\n".join(files.values())
    tls = around.configuration.tls
    assert tls is not None
    key_lines = [line for line in Path(tls.key).read_text().splitlines() if not line.startswith("-----")]
    secrets = [USER, CONNECTOR, TOKEN, OTHER, quote(CONNECTOR, safe=""), json.dumps(CONNECTOR)[1:-1], *key_lines,
               "aGFzaGhhc2g", "c2lnbmF0dXJlc2ln", "QUJDREVGR0hJSg==", "PRIVATE KEY", DEVICE_KEY]  # fmt: skip
    secrets += [base64.b64encode(secret.encode()).decode().rstrip("=") for secret in (USER, CONNECTOR)]
    for secret in secrets:
        for name, content in files.items():
            assert secret.encode() not in content, f"{secret} in {name}"
    assert BODY not in everything, "no message"
    assert everything.count(REDACTED.encode()) > 10


def test_archive_contains_useful_files(around: CheckContext, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    names = write_bundle(target, around, [fail("store", "seen", "step")])
    assert target.stat().st_mode & 0o077 == 0
    files = unpacked(target)
    assert set(names) == set(files)
    assert json.loads(files["doctor.json"])[0]["name"] == "store"
    assert b"alice" in files["configuration/resources.yaml"]
    assert b"cloud.example" in files["configuration/effective.json"]
    assert json.loads(files["store/info.json"])["messages"] == 370
    assert json.loads(files["store/verify.json"])["findings"] == []
    assert b"store.sqlite" in files["data.txt"]
    assert b"queue/jobs is full" in files["logs/gateway.log"]


def test_long_log_keeps_its_end(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    log.write_text("early\n" + "x" * (LOG_BYTES_MAX // 2) + "a=b:c" * (LOG_BYTES_MAX // 10) + "\nlate\n")
    write_bundle(tmp_path / "b.tar.gz", CheckContext(), [], [log])
    content = unpacked(tmp_path / "b.tar.gz")["logs/long.log"]
    assert content.endswith(b"late\n")
    assert b"early" not in content
    assert len(content) <= LOG_BYTES_MAX


def test_broken_store_does_not_stop_the_archive(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"x" * 9000)
    write_bundle(tmp_path / "b.tar.gz", CheckContext(data=tmp_path), [])
    assert "error" in json.loads(unpacked(tmp_path / "b.tar.gz")["store/info.json"])


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_bundle(tmp_path / "none" / "b.tar.gz", CheckContext(), [])


@pytest.mark.parametrize("line", ["Cookie: session=k3pt", "passcode=k3pt", "assertion: 'k3pt'"])
def test_secrets_by_name_are_removed_from_logs(line: str) -> None:
    assert "k3pt" not in Redactor().text(line)


def test_short_and_common_words_remain() -> None:
    redactor = Redactor({"on", "x"})
    assert redactor.text("on the next example") == "on the next example"
    assert redactor.document({"passwordSecret": "abc", "key": "/etc/key.pem", "n": 5}) == {
        "passwordSecret": REDACTED, "key": "/etc/key.pem", "n": 5
    }  # fmt: skip
