"""Certificates: validity, chain and key; revocation lists that are current."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from edge.appliance.doctor.certificates import Files, certificates, check_files
from edge.appliance.doctor.check import Level
from edge.broker.configuration import BrokerConfiguration, Connector, DeviceTls, EndpointHost, TlsFiles
from tests.support.certificates import Authority, Issued
from tests.unit.doctor.check_context import bad, machine

TODAY = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue("gateway")


def said(files: Files, now: datetime.datetime = TODAY) -> list[tuple[str, str]]:
    return [(result.level.value, result.seen) for result in bad(check_files(files, now))]


def revocations(authority: Authority, path: Path, due: datetime.datetime) -> str:
    """Write an empty revocation list with this next update."""
    own = x509.load_pem_x509_certificate(Path(authority.certificate).read_bytes())
    key = load_pem_private_key((authority.folder / "ca.key").read_bytes(), None)
    builder = x509.CertificateRevocationListBuilder().issuer_name(own.subject)
    built = builder.last_update(TODAY - 30 * DAY).next_update(due).sign(key, hashes.SHA256())  # type: ignore[arg-type]
    path.write_bytes(built.public_bytes(Encoding.PEM))
    return str(path)


class TestTimes:
    def test_certificate_close_to_its_end_is_a_warning(self, issued: Issued, authority: Authority) -> None:
        [(level, seen)] = said(Files("listeners", issued.certificate, issued.key, None, None))
        assert level == "warn"
        assert "CN=gateway" in seen
        assert "expires in 1 day" in seen

    def test_expired_certificate_is_a_failure(self, issued: Issued) -> None:
        [(level, seen)] = said(Files("listeners", issued.certificate, issued.key, None, None), TODAY + 10 * DAY)
        assert (level, "expired on" in seen) == ("fail", True)

    def test_certificate_of_the_future_is_reported(self, issued: Issued) -> None:
        results = said(Files("listeners", issued.certificate, issued.key, None, None), TODAY - 400 * DAY)
        assert [level for level, _ in results] == ["fail"]
        assert "not valid before" in results[0][1]

    def test_authority_is_checked(self, authority: Authority) -> None:
        assert [level for level, _ in said(Files("x", None, None, authority.certificate, None), TODAY + 9 * DAY)] == [
            "fail"
        ]


class TestFiles:
    def test_missing_file_is_a_failure(self, tmp_path: Path) -> None:
        [(level, seen)] = said(Files("x", str(tmp_path / "none.pem"), None, None, None))
        assert (level, "No such file" in seen) == ("fail", True)

    def test_file_without_a_certificate_is_a_failure(self, tmp_path: Path) -> None:
        (tmp_path / "a.pem").write_text("hello")
        [(level, seen)] = said(Files("x", str(tmp_path / "a.pem"), None, None, None))
        assert (level, "not contain a PEM certificate" in seen) == ("fail", True)

    def test_key_of_another_certificate_is_a_failure(self, issued: Issued, authority: Authority) -> None:
        other = authority.issue("other")
        results = said(Files("x", issued.certificate, other.key, None, None))
        assert any("does not belong" in seen for _, seen in results)

    def test_invalid_key_is_a_failure(self, issued: Issued, tmp_path: Path) -> None:
        (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
        results = said(Files("x", issued.certificate, str(tmp_path / "key.pem"), None, None))
        assert any("not a PEM key" in seen for _, seen in results)

    def test_chain_is_accepted_only_in_order(self, issued: Issued, authority: Authority, tmp_path: Path) -> None:
        own, upper = Path(issued.certificate).read_text(), Path(authority.certificate).read_text()
        (tmp_path / "good.pem").write_text(own + upper)
        (tmp_path / "bad.pem").write_text(upper + own)
        assert all("sign" not in seen for _, seen in said(Files("x", str(tmp_path / "good.pem"), None, None, None)))
        assert any("did not sign" in seen for _, seen in said(Files("x", str(tmp_path / "bad.pem"), None, None, None)))

    @pytest.mark.parametrize(("days", "late"), [(1, False), (-1, True)])
    def test_revocation_list_must_be_current(self, authority: Authority, tmp_path: Path, days: int, late: bool) -> None:
        path = revocations(authority, tmp_path / "crl.pem", TODAY + days * DAY)
        results = said(Files("x", None, None, None, path))
        assert any("should have been replaced" in seen for _, seen in results) is late


def test_list_of_revoked_client_certificates_is_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    issued, file = authority.issue("gw1"), tmp_path / "revoked.crl"
    tls = DeviceTls(
        certificate=issued.certificate, key=issued.key, client_ca=authority.certificate, client_crl=str(file)
    )

    def looked() -> tuple[str, str]:
        around = machine(tmp_path, configuration=BrokerConfiguration(tls=tls), now=time.time)
        [found] = [each for each in certificates(around) if each.name == "revocations of listeners"]
        return found.level.value, found.seen

    assert looked()[0] == "fail"
    file.write_bytes(authority.revocations(der=True))
    assert looked() == ("ok", f"{file} is valid")
    file.write_bytes(authority.revocations(begins="20200101000000Z", ends="20200102000000Z"))
    assert "ended at 2020-01-02T00:00:00Z" in looked()[1]


def test_listeners_and_connectors_are_checked(issued: Issued, authority: Authority, tmp_path: Path) -> None:
    configuration = BrokerConfiguration(
        tls=DeviceTls(certificate=issued.certificate, key=issued.key, client_ca=authority.certificate),
        connectors=(
            Connector(name="hub", hosts=(EndpointHost(host="h", port=1),), tls=TlsFiles(ca=str(tmp_path / "gone.pem"))),
            Connector(name="plain", hosts=(EndpointHost(host="h", port=1),)),
        ),
    )
    results = list(certificates(machine(tmp_path, configuration=configuration, now=TODAY.timestamp)))
    assert {result.name for result in results} == {
        "certificate of listeners", "authority of listeners", "authority of connector hub"
    }  # fmt: skip
    assert [result.level for result in results if "hub" in result.name] == [Level.FAIL]
