"""A gateway enrols: every order of events between its key, its request, the hub's answer and its files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from bridge.enrolment import EnrolmentToken, IssuedCertificate, RefusalReason
from cloud.hub.enrolment.authority import OwnAuthority
from edge.appliance.identity.enrolling import EnrolmentResult, enrol
from edge.appliance.identity.exchange import AnswerLost, HubUnreachable, NotIssued, WrongHub
from edge.appliance.identity.files import GatewayIdentity
from edge.appliance.identity.request import CertificateMismatch
from edge.broker.security.peer_tls import NO_CHECK_TIME
from tests.unit.enrolment.hub import DAY, NOW, Hub


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path)


def gateway(folder: Path, name: str = "gw") -> Path:
    made = folder / name
    made.mkdir(exist_ok=True)
    return made


def come(hub: Hub, data: Path, token: EnrolmentToken, name: str = "hall", *, clock: float = NOW) -> EnrolmentResult:
    return enrol(data, hub, token, name, now=lambda: clock, pause=lambda _s: None)


def good(data: Path) -> bool:
    """Return True when key and certificate of a data directory match."""
    file = GatewayIdentity(data).file
    context = ssl.create_default_context(cafile=str(file))
    context.load_cert_chain(file, file)
    return True


def test_files_are_private(hub: Hub, tmp_path: Path) -> None:
    data = gateway(tmp_path)
    enrolled = come(hub, data, hub.token())
    assert good(data)
    assert [(path.name, path.stat().st_mode & 0o777) for path in data.rglob("*")] == [
        ("identity", 0o700),
        ("identity.pem", 0o600),
    ]
    assert (enrolled.issued.tenant, enrolled.issued.gateway, enrolled.clock_off_s) == ("acme", "hall", 0.0)
    own = GatewayIdentity(data).certificate()
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["waypost://acme/hall"]
    assert GatewayIdentity(data).authority() == hub.own.pem


def test_lost_answer_is_requested_again(hub: Hub, tmp_path: Path) -> None:
    hub.lost = 2
    assert good(come(hub, gateway(tmp_path), hub.token()).file.parents[1])
    assert hub.asked == 3


def test_command_may_be_repeated_after_lost_answers(hub: Hub, tmp_path: Path) -> None:
    data, token = gateway(tmp_path), hub.token()
    hub.lost = 4
    with pytest.raises(AnswerLost):
        come(hub, data, token)
    assert GatewayIdentity(data).key_was_sent
    other = gateway(tmp_path, "other")
    with pytest.raises(NotIssued) as refused:
        come(hub, other, token, "other")
    assert refused.value.reason == RefusalReason.SPENT.value
    assert not list(other.iterdir()), "what was sent in vain is not kept"
    hub.gone = True
    with pytest.raises(HubUnreachable):
        come(hub, data, token)
    hub.gone = False
    assert good(come(hub, data, token).file.parents[1])
    assert not GatewayIdentity(data).key_was_sent


def test_hub_may_restart_between_a_lost_answer_and_the_retry(hub: Hub, tmp_path: Path) -> None:
    data, token = gateway(tmp_path), hub.token()
    hub.lost = 1

    def gone(_pause_s: float) -> None:
        hub.gone = True

    with pytest.raises(AnswerLost):
        enrol(data, hub, token, "hall", now=lambda: NOW, pause=gone)
    hub.gone = False
    assert good(come(hub, data, token).file.parents[1])


def test_enrolment_continues_after_a_kill_between_answer_and_file(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    data, token = gateway(tmp_path), hub.token()
    monkeypatch.setattr(GatewayIdentity, "replace", die)
    with pytest.raises(Killed):
        come(hub, data, token)
    monkeypatch.undo()
    first = come(hub, data, token)
    assert good(data)
    assert first.issued.certificate == come_again(hub, data, token), "the same certificate, as often as it is asked for"


def come_again(hub: Hub, data: Path, token: EnrolmentToken) -> str:
    """Enrol again with the key in use, as if its request had no answer yet."""
    own = GatewayIdentity(data)
    text = own.file.read_text()
    own.file.with_name("next.key").write_text(text[: text.index("-----BEGIN CERTIFICATE-----")])
    return come(hub, data, token).issued.certificate


class TestRefused:
    def test_unreachable_hub_is_reported(self, hub: Hub, tmp_path: Path) -> None:
        hub.gone, data = True, gateway(tmp_path)
        with pytest.raises(HubUnreachable) as error:
            come(hub, data, hub.token())
        assert not isinstance(error.value, AnswerLost)
        assert not list(data.iterdir())

    def test_another_hub_is_refused(self, hub: Hub, tmp_path: Path) -> None:
        data, token = gateway(tmp_path), hub.token()
        hub.shown = OwnAuthority.make("hub", NOW).pem
        with pytest.raises(WrongHub):
            come(hub, data, token)
        hub.shown = "no certificate"
        with pytest.raises(WrongHub):
            come(hub, data, token)
        assert hub.asked == 0, "it has not seen the token"
        assert not list(data.iterdir())

    def test_another_authority_behind_the_one_of_the_token_is_refused(self, hub: Hub, tmp_path: Path) -> None:
        """An attacker in between shows the public certificate of the hub, and one of his own behind it."""
        data, token = gateway(tmp_path), hub.token()
        hub.shown = hub.own.pem + OwnAuthority.make("hub", NOW).pem
        come(hub, data, token)
        [trusted] = {cert for context in hub.contexts for cert in context.get_ca_certs(binary_form=True)}
        assert trusted == hub.own.certificate.public_bytes(Encoding.DER)
        assert GatewayIdentity(data).authority() == hub.own.pem
        hub.shown = OwnAuthority.make("hub", NOW).pem + hub.own.pem
        with pytest.raises(WrongHub):
            come(hub, gateway(tmp_path, "other"), hub.token())

    def test_expired_token_is_refused(self, hub: Hub, tmp_path: Path) -> None:
        data, token = gateway(tmp_path), hub.token(life_s=DAY)
        hub.now += DAY
        with pytest.raises(NotIssued) as refused:
            come(hub, data, token)
        assert refused.value.reason == RefusalReason.EXPIRED.value
        assert not list(data.iterdir())

    @pytest.mark.parametrize("name", ["", "a\nb", "x" * 256])
    def test_invalid_names_are_refused(self, hub: Hub, tmp_path: Path, name: str) -> None:
        with pytest.raises(NotIssued) as refused:
            come(hub, gateway(tmp_path), hub.token(), name)
        assert refused.value.reason == RefusalReason.MALFORMED.value

    def test_certificate_of_another_gateway_is_refused(
        self, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        theirs = come(hub, gateway(tmp_path, "theirs"), hub.token(), "theirs").issued
        data, token = gateway(tmp_path), hub.token()

        def swapped(*_: Any) -> IssuedCertificate:
            return theirs

        monkeypatch.setattr(hub, "ask", swapped)
        with pytest.raises(CertificateMismatch):
            come(hub, data, token)


class TestClock:
    def test_clock_of_1970_does_not_prevent_enrolment(self, hub: Hub, tmp_path: Path) -> None:
        """A Raspberry Pi has no battery for its clock, so the gateway ignores its own time and uses the hub's."""
        enrolled = come(hub, gateway(tmp_path), hub.token(), clock=3_600.0)
        assert enrolled.clock_off_s == 3_600.0 - NOW
        assert hub.contexts[0].verify_flags & NO_CHECK_TIME
        assert hub.contexts[0].check_hostname

    def test_plausible_clock_judges_validity(self, hub: Hub, tmp_path: Path) -> None:
        come(hub, gateway(tmp_path), hub.token(), clock=NOW + 40 * DAY)
        assert not hub.contexts[0].verify_flags & NO_CHECK_TIME

    def test_certificate_invalid_by_the_clock_of_the_hub_is_refused(
        self, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ask = hub.ask

        def late(*arguments: Any) -> IssuedCertificate:
            issued = ask(*arguments)
            return IssuedCertificate(
                issued.tenant, issued.gateway, issued.certificate, issued.authority, NOW + 1_000 * DAY
            )

        monkeypatch.setattr(hub, "ask", late)
        with pytest.raises(CertificateMismatch):
            come(hub, gateway(tmp_path), hub.token())
