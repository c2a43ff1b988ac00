"""A gateway becomes what its card says: it enrols, sends to its hub, and the hub hears what it was set up with.

The gateway's part, as the gateway's user, beside the gateway that serves meanwhile. Each step looks first at what is
there, so that a start that was cut off at any moment goes on where it stopped.
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
from edge.appliance.identity.enrolling import at_first, enrol
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
from edge.configuration.file import RepositoryError
from edge.configuration.first_gateway import addresses, hub_of
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from edge.configuration.resources import GatewaySpec
from edge.output.times import moment

Attest = Callable[[FirstBootSettings, x509.Certificate | None], Attestation]
PublicKey = ec.EllipticCurvePublicKey


def _nothing() -> None:
    """Take no notice."""


ANOTHER: Final = (
    "at the hub: waypost fleet token create; write it into waypost.yaml on the card, with the other settings "
    "(waypost.applied.yaml has them), and start the gateway again"
)
"""What helps where a token does not."""
ANOTHER_HUB: Final = "compare hub.url with the hub's address and names (hub run --name)."
"""What helps where who answers does not show that he is the hub."""


class FirstBootInterrupted(Exception):
    """It cannot go on now; the message says why, `next_step` what to do."""

    def __init__(self, words: str, next_step: str) -> None:
        super().__init__(words)
        self.next_step = next_step


class FirstBoot:
    """Of one data directory."""

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
        """`attest`: finds out what the machine is; `system`: those fields of it that an update changes, cheaply. `now`:
        UTC seconds since 1970. `tls`: places of listeners with TLS, by their names (`mqtts`, `https`), for a gateway
        that has enrolled and has none. `restart`: called when the gateway takes up a setting at its next start only."""
        self.journal = FirstBootJournal(data)
        self._data = data
        self._attest = attest
        self._system = system
        self._now = now
        self._identity = GatewayIdentity(data)
        self._tls = tls or {}
        self._restart = restart

    def step(self) -> bool:
        """Go as far as it goes; True once there is nothing more to do. Raises `FirstBootInterrupted`, OSError."""
        wanted = self.journal.wanted()
        if wanted is None:
            return True
        self.journal.begin(wanted)
        state = self.journal.state
        if not state.configured:
            if wanted.token is not None and wanted.urls:
                self._enrol(wanted, EnrolmentToken.parse(wanted.token))
            self._configure(wanted)
            self.journal.note(configured=True)
        if not state.attested or self._system_changed():
            self.journal.note(attested=False)
            self._attested(wanted)
        self.journal.note(attested=True, trouble="", next_step="", done_at=state.done_at or moment(self._now()))
        return True

    def stopped(self, why: FirstBootInterrupted) -> None:
        """Note why it does not go on. Raises OSError."""
        self.journal.note(trouble=str(why), next_step=why.next_step)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _enrol(self, wanted: FirstBootSettings, token: EnrolmentToken) -> None:
        """The key is noted before it is sent: a certificate of it that is there is this token's."""
        state = self.journal.state
        if state.used == token.id and state.key and state.key == self._key_there():
            return
        key = self._identity.key_to_send()
        self.journal.note(used=token.id, key=key_id(key.public_key()))
        try:
            at_first(wanted.urls, lambda url: enrol(self._data, _exchange(wanted, url), token, wanted.name))
        except AnswerLost as error:
            raise FirstBootInterrupted(str(error), "nothing: it asks again by itself, with the same key") from None
        except HubUnreachable as error:
            places = ", ".join(wanted.urls)
            step = f"is there a network, and does the hub run at {places}? It asks again by itself"
            raise FirstBootInterrupted(str(error), step) from None
        except ClockDiffers as error:
            raise FirstBootInterrupted(str(error), clock_step(synchronized=kernel_synchronized())) from None
        except WrongHub as error:
            raise FirstBootInterrupted(str(error), ANOTHER_HUB) from None
        except NotIssued as error:
            raise FirstBootInterrupted(f"the hub gives no certificate: {error}", ANOTHER) from None
        except CertificateMismatch as error:
            raise FirstBootInterrupted(str(error), "a fault of the hub: see its log") from None

    def _key_there(self) -> str:
        """Of the certificate the gateway has."""
        try:
            found = self._identity.certificate().public_key()
        except (OSError, ValueError):
            return ""
        return key_id(found) if isinstance(found, PublicKey) else ""

    def _configure(self, wanted: FirstBootSettings) -> None:
        """The gateway sends to its hub; it takes that up while it runs."""
        repository = Repository(self._data)
        try:
            applied = repository.own()
            found = next((each for each in applied if isinstance(each.spec, GatewaySpec)), None)
            if found is None:
                raise FirstBootInterrupted(
                    "the gateway has no configuration yet", "nothing: its service makes a first one"
                )
            repository.apply(list(self._resources(wanted, found)))
            if restarts(KINDS, applied, repository.own()):
                self._restart()
        except (RepositoryError, ConfigurationRejected) as error:
            step = "see it: waypost get -o yaml; and correct what it says, or the settings"
            raise FirstBootInterrupted(f"the settings do not fit the gateway: {error}", step) from None

    def _resources(self, wanted: FirstBootSettings, found: Resource) -> list[Resource]:
        document: dict[str, Any] = dict(found.document)
        spec = dict(document.get("spec") or {})
        if wanted.urls:
            spec["hub"] = {**hub_of(wanted.urls, hub_tls(self._identity.file), wanted.proxy), "gateway": wanted.name}
            spec["listeners"] = self._listeners(spec.get("listeners") or {})
        if wanted.keep_free is not None:
            spec["limits"] = {**(spec.get("limits") or {}), "freeFloorBytes": wanted.keep_free}
        document["spec"] = spec
        text = "---\n".join(to_yaml(each) for each in (document, *addresses(wanted.forward)))
        return parse(KINDS, text, "the settings on the card")

    def _listeners(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add listeners with TLS, unless there are some. They show the certificate that the hub has issued, which
        devices can verify by the gateway's name in their network."""
        if not self._tls or not found.keys().isdisjoint(("tls", *self._tls)):
            return found
        names = server_names(self._identity.certificate())
        if not names:  # an older hub, or another authority, has issued it for clients only
            return found
        own = str(self._identity.file)
        return {"hostNames": names, **found, **self._tls, "tls": {"certificate": own, "key": own}}

    def _system_changed(self) -> bool:
        """After an update, or one that was taken back, what was said is not so any more."""
        said, now = self.journal.state.attestation, self._system()
        return any(value and value != said.get(name) for name, value in now.items())

    def _attested(self, wanted: FirstBootSettings) -> None:
        """It is known here what the machine is, and at the hub where there is one."""
        try:
            own = self._identity.certificate() if wanted.urls else None
            said = self._attest(wanted, own)
            self.journal.note(attestation=msgspec.to_builtins(said))
            if wanted.urls:
                self._tell(said, wanted, self._identity.authority())
        except ValueError as error:
            raise FirstBootInterrupted(f"the gateway's identity cannot be read: {error}", ANOTHER) from None

    def _tell(self, said: Attestation, wanted: FirstBootSettings, authority: str) -> None:
        """With the certificate the hub gave."""

        def tell(url: str) -> None:
            context = trusting(authority)
            context.load_cert_chain(self._identity.file, self._identity.file)
            _exchange(wanted, url).tell(ATTESTATION_PATH, said, context)

        try:
            at_first(wanted.urls, tell)
        except HubUnreachable as error:
            raise FirstBootInterrupted(str(error), "nothing, if the hub is away: it tells it later by itself") from None
        except ClockDiffers as error:
            raise FirstBootInterrupted(str(error), clock_step(synchronized=kernel_synchronized())) from None
        except WrongHub as error:
            raise FirstBootInterrupted(str(error), f"{ANOTHER_HUB} It tells it later by itself") from None
        except NotIssued as error:
            raise FirstBootInterrupted(
                f"the hub does not take what the gateway says of itself: {error}", ANOTHER
            ) from None


def clock_step(*, synchronized: bool) -> str:
    """Say what helps where the hub's certificate is not valid by this machine's clock."""
    if synchronized:
        return "a time service keeps this clock right: compare it with the hub's clock. It asks again by itself"
    return (
        "no time server has answered. Let UDP port 123 out, or name a server that this network reaches, often the "
        "router: timeServers in waypost.yaml. It asks again by itself"
    )


def _exchange(wanted: FirstBootSettings, url: str) -> HubEnrolmentClient:
    place = HubUrl.parse(url)
    return HubEnrolmentClient(place.endpoint, proxy=wanted.proxy, amqp=place.path is None)


def key_id(key: PublicKey) -> str:
    """SHA-256 of a public key."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
