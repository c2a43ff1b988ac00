"""Enrol a gateway by the settings of its card, forward to the hub, and send the hub a report of the set-up.

It runs as the gateway's user while the gateway serves. Each step first checks what was done, so that an interrupted
run continues where it stopped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bridge.enrolment import ATTESTATION_PATH, Attestation, EnrolmentToken
from bridge.resources.effects import restarts
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.parse import parse, to_yaml
from bridge.resources.resource import Resource
from bridge.resources.values import HubUrl
from edge.appliance.clock import kernel_synchronized
from edge.appliance.first_boot.journal import FirstBootJournal, FirstBootSettings
from edge.appliance.first_boot.portal import find_portal
from edge.appliance.identity.enrolling import enrol, try_in_order
from edge.appliance.identity.exchange import (
    AnswerLost,
    ClockDiffers,
    HubEnrolmentClient,
    HubUnreachable,
    NotIssued,
    WrongHub,
    trusting,
)
from edge.appliance.identity.files import GatewayIdentity
from edge.appliance.identity.location import hub_tls
from edge.appliance.identity.request import CertificateMismatch, server_names
from edge.appliance.initial.defaults import HTTPS
from edge.configuration.file import RepositoryError
from edge.configuration.first_gateway import addresses, hub_of
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from edge.configuration.resources import GatewaySpec
from edge.output.times import moment

Attest = Callable[[FirstBootSettings, x509.Certificate | None], Attestation]
PublicKey = ec.EllipticCurvePublicKey


def _nothing() -> None:
    """Do nothing."""


NEW_ENROLMENT_STEP: Final = (
    "at the hub: waypost token create; write it into waypost.yaml on the card, with the other settings "
    "(waypost.applied.yaml has them), and start the gateway again"
)
"""Next step when a token is not accepted."""
CHECK_HUB_STEP: Final = "compare hub.url with the hub's address and names (hub run --name)."
"""Next step when the peer does not prove to be the hub."""


class FirstBootInterrupted(Exception):
    """The set-up cannot continue now. The message says why, `next_step` what to do."""

    def __init__(self, words: str, next_step: str) -> None:
        super().__init__(words)
        self.next_step = next_step


class FirstBoot:
    """Set-up of the gateway in one data directory."""

    def __init__(
        self,
        data: Path,
        attest: Attest,
        now: Callable[[], float],
        system: Callable[[], Mapping[str, str]] = dict,
        *,
        tls: Mapping[str, str] | None = None,
        restart: Callable[[], None] = _nothing,
    ) -> None:
        """`attest` returns the state of the machine; `system` its fields that an update changes, cheaply. `now`: UTC
        seconds since 1970. `tls`: addresses of TLS listeners by name (`mqtts`, `https`), for an enrolled gateway
        without any. `restart`: called when the gateway applies a setting only at its next start."""
        self.journal = FirstBootJournal(data)
        self._data = data
        self._attest = attest
        self._system = system
        self._now = now
        self._identity = GatewayIdentity(data)
        self._tls = tls or {}
        self._restart = restart

    def step(self) -> bool:
        """Run all remaining steps; return True when done. Raises `FirstBootInterrupted`, OSError."""
        wanted = self.journal.wanted()
        if wanted is None:
            return True
        self.journal.read()  # `waypost replace import` has changed it if the gateway has just moved here
        self.journal.begin(wanted)
        state = self.journal.state
        if not state.configured:
            if wanted.token is not None and wanted.urls:
                self._enrol(wanted, EnrolmentToken.parse(wanted.token))
            self._configure(wanted)
            self.journal.note(configured=True)
        if not state.attested or self._system_changed():
            self.journal.note(attested=False)
            self._report_attestation(wanted)
        self.journal.note(attested=True, trouble="", next_step="", done_at=state.done_at or moment(self._now()))
        return True

    def stopped(self, why: FirstBootInterrupted) -> None:
        """Record why the set-up cannot continue. Raises OSError."""
        self.journal.note(trouble=str(why), next_step=why.next_step)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _enrol(self, wanted: FirstBootSettings, token: EnrolmentToken) -> None:
        """Enrol by a token. The key is recorded before it is sent, so that after an interruption a certificate for it
        is known to be this token's."""
        state = self.journal.state
        if state.used == token.id and state.key and state.key == self._certified_key():
            return
        key = self._identity.key_to_send()
        self.journal.note(used=token.id, key=key_id(key.public_key()))
        try:
            try_in_order(wanted.urls, lambda url: enrol(self._data, _exchange(wanted, url), token, wanted.name))
        except AnswerLost as error:
            raise FirstBootInterrupted(str(error), "nothing: it retries with the same key") from None
        except HubUnreachable as error:
            places = ", ".join(wanted.urls)
            step = f"check the network, and that the hub runs at {places}. It retries by itself"
            raise FirstBootInterrupted(str(error), portal_step(wanted, step)) from None
        except ClockDiffers as error:
            raise FirstBootInterrupted(str(error), clock_step(synchronized=kernel_synchronized())) from None
        except WrongHub as error:
            raise FirstBootInterrupted(str(error), portal_step(wanted, CHECK_HUB_STEP)) from None
        except NotIssued as error:
            raise FirstBootInterrupted(f"the hub refuses a certificate: {error}", NEW_ENROLMENT_STEP) from None
        except CertificateMismatch as error:
            raise FirstBootInterrupted(str(error), "a fault of the hub: see its log") from None

    def _certified_key(self) -> str:
        """Return the key id of the gateway's certificate; empty without one."""
        try:
            found = self._identity.certificate().public_key()
        except (OSError, ValueError):
            return ""
        return key_id(found) if isinstance(found, PublicKey) else ""

    def _configure(self, wanted: FirstBootSettings) -> None:
        """Configure the gateway to forward to its hub. A running gateway applies it."""
        repository = Repository(self._data)
        try:
            applied = repository.own()
            found = next((each for each in applied if isinstance(each.spec, GatewaySpec)), None)
            if found is None:
                raise FirstBootInterrupted("the gateway has no configuration yet", "nothing: its service creates one")
            repository.apply(list(self._resources(wanted, found)))
            if restarts(KINDS, applied, repository.own()):
                self._restart()
        except (RepositoryError, ConfigurationRejected) as error:
            step = "compare them with waypost get -o yaml, and correct either"
            raise FirstBootInterrupted(f"the settings do not fit the gateway: {error}", step) from None

    def _resources(self, wanted: FirstBootSettings, found: Resource) -> list[Resource]:
        document: dict[str, Any] = dict(found.document)
        spec = dict(document.get("spec") or {})
        if wanted.urls:
            pace = {name: value for name, value in (spec.get("hub") or {}).items() if name == "pace"}  # no card sets it
            hub = hub_of(wanted.urls, hub_tls(self._identity.file), wanted.proxy)
            spec["hub"] = {**pace, **hub, "gateway": wanted.name}
            spec["listeners"] = self._listeners(spec.get("listeners") or {})
        if wanted.keep_free is not None:
            spec["limits"] = {**(spec.get("limits") or {}), "freeFloorBytes": wanted.keep_free}
        document["spec"] = spec
        text = "---\n".join(to_yaml(each) for each in (document, *addresses(wanted.forward)))
        return parse(KINDS, text, "the settings on the card")

    def _listeners(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add listeners with TLS, unless there are some apart from the default of `waypost init`. Devices verify the
        certificate that the hub issued by the gateway's name in their network."""
        chosen = {name for name, place in found.items() if (name, place) != ("https", HTTPS)}
        if not self._tls or not chosen.isdisjoint(("tls", *self._tls)):
            return found
        names = server_names(self._identity.certificate())
        if not names:  # issued for clients only, by an older hub or another authority
            return found
        own = str(self._identity.file)
        return {"hostNames": names, **found, **self._tls, "tls": {"certificate": own, "key": own}}

    def _system_changed(self) -> bool:
        """Return True when the reported system is no longer the running one, after an update or its roll-back."""
        reported, now = self.journal.state.attestation, self._system()
        return any(value and value != reported.get(name) for name, value in now.items())

    def _report_attestation(self, wanted: FirstBootSettings) -> None:
        """Record the state of the machine, and send it to the hub if there is one."""
        try:
            own = self._identity.certificate() if wanted.urls else None
            attested = self._attest(wanted, own)
            self.journal.note(attestation=msgspec.to_builtins(attested))
            if wanted.urls:
                self._send_attestation(attested, wanted, self._identity.authority())
        except ValueError as error:
            raise FirstBootInterrupted(f"the gateway's identity cannot be read: {error}", NEW_ENROLMENT_STEP) from None

    def _send_attestation(self, attested: Attestation, wanted: FirstBootSettings, authority: str) -> None:
        """Send it to the hub, with the certificate that the hub issued."""

        def send(url: str) -> None:
            context = trusting(authority)
            context.load_cert_chain(self._identity.file, self._identity.file)
            _exchange(wanted, url).send(ATTESTATION_PATH, attested, context)

        try:
            try_in_order(wanted.urls, send)
        except HubUnreachable as error:
            raise FirstBootInterrupted(str(error), "nothing, if the hub is away: it retries by itself") from None
        except ClockDiffers as error:
            raise FirstBootInterrupted(str(error), clock_step(synchronized=kernel_synchronized())) from None
        except WrongHub as error:
            raise FirstBootInterrupted(str(error), f"{CHECK_HUB_STEP} It retries by itself") from None
        except NotIssued as error:
            raise FirstBootInterrupted(
                f"the hub does not accept the gateway's report of its set-up: {error}", NEW_ENROLMENT_STEP
            ) from None


def portal_step(wanted: FirstBootSettings, otherwise: str) -> str:
    """Return the next step in a network that may have a sign-in page. `otherwise`: the step in any other."""
    if wanted.url is None or wanted.proxy is not None:
        return otherwise
    host = HubUrl.parse(wanted.url).endpoint.host
    portal = find_portal(host)
    if portal is None:
        return otherwise
    if portal == host:  # many web servers do so, too
        return (
            f"port 80 of {host} answers any address with a web page. If this network has a sign-in page, have the "
            f"gateway admitted there by its hardware address, or use another network. If not: {otherwise}"
        )
    return (
        f"port 80 of {host} leads to {portal}. If that is a sign-in page of this network, have the gateway admitted "
        "there by its hardware address, or use another network. It retries by itself"
    )


def clock_step(*, synchronized: bool) -> str:
    """Return the next step when the hub's certificate is not valid by this machine's clock."""
    if synchronized:
        return "this clock is synchronized by a time service: compare it with the hub's clock. It retries by itself"
    return (
        "no time server has answered. Allow outgoing UDP port 123, or set timeServers in waypost.yaml to a server that "
        "this network reaches, often the router. It retries by itself"
    )


def _exchange(wanted: FirstBootSettings, url: str) -> HubEnrolmentClient:
    place = HubUrl.parse(url)
    return HubEnrolmentClient(place.endpoint, proxy=wanted.proxy, amqp=place.path is None)


def key_id(key: PublicKey) -> str:
    """Return the SHA-256 of a public key."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
