"""A hub that issues certificates without a network, with faults that a test injects."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

from bridge.enrolment import EnrolmentRequest, EnrolmentToken, IssuedCertificate, RenewalRequest
from bridge.resources.endpoint import ListenEndpoint
from cloud.hub.enrolment.authority import OwnAuthority
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.peers import gateway_uri
from cloud.hub.registry.enrolments import EnrolmentRefused, Enrolments, NamelessRequest, TokenRecord
from cloud.hub.registry.location import sqlite_url
from edge.appliance.identity.exchange import AnswerLost, HubEnrolmentClient, HubUnreachable, NotIssued

NOW = 1_800_000_000.0
DAY = 86_400.0


def shown(serial: str, name: str = "hall", tenant: str = "acme") -> dict[str, Any]:
    """Return a certificate as `ssl` does."""
    dates = {"notBefore": "Jan  1 00:00:00 2026 GMT", "notAfter": "Jan  1 00:00:00 2030 GMT"}
    return {"subjectAltName": (("URI", gateway_uri(tenant, name)),), "serialNumber": serial, **dates}


class Hub(HubEnrolmentClient):
    """Hub without sockets; all other parts are real."""

    def __init__(self, folder: Path, *, life_s: float = 90 * DAY) -> None:
        super().__init__(ListenEndpoint("hub", 5671))
        self.now = NOW
        self.own = OwnAuthority.make("hub", NOW)
        self.shown = self.own.pem
        """Certificate that the hub presents as its authority."""
        self.lost = 0
        """Answers to lose from now on."""
        self.gone = False
        """The hub does not answer."""
        self.shows = "0"
        """Serial number of the certificate that a renewal presents."""
        self.asked = 0
        self.contexts: list[ssl.SSLContext] = []
        self._url = sqlite_url(folder / "registry.db")
        self._life_s = life_s

    def token(self, *, gateway: str | None = None, life_s: float = DAY) -> EnrolmentToken:
        """Make a new token."""
        made = EnrolmentToken.make(self.own.fingerprint)
        registry = Enrolments(self._url)
        now_us = int(self.now * 1e6)
        registry.add([TokenRecord(made.id, made.digest, "acme", gateway, now_us, now_us + int(life_s * 1e6))])
        registry.close()
        return made

    def authority(self) -> str:
        if self.gone:
            raise HubUnreachable("hub:5671 does not answer")
        return self.shown

    def ask(self, path: str, document: Any, context: ssl.SSLContext) -> IssuedCertificate:
        if self.gone:
            raise HubUnreachable("hub:5671 does not answer")
        self.asked += 1
        self.contexts.append(context)
        try:
            issued = asyncio.run(self._answer(document))
        except EnrolmentRefused as refused:
            named = refused.gateway_uri if isinstance(refused, NamelessRequest) else ""
            raise NotIssued(refused.reason.value, str(refused), named) from refused
        if self.lost:
            self.lost -= 1
            raise AnswerLost("hub:5671: the connection broke")
        return issued

    def fetch(self, path: str, context: ssl.SSLContext, bytes_max: int = 0) -> bytes:
        raise HubUnreachable("hub:5671 has no list")

    def revoke(self, gateway: str) -> int:
        """Revoke as the command does."""
        registry = Enrolments(self._url)
        count = registry.revoke("acme", gateway, int(self.now * 1e6))
        registry.close()
        return count

    def enrolment(self, **more: Any) -> Enrolment:
        """Return the enrolment of one process of the hub."""
        told = {"life_s": self._life_s, "revoked": lambda: None, "now": lambda: self.now}
        return Enrolment(self.own, self._url, **told, **more)

    async def _answer(self, document: EnrolmentRequest | RenewalRequest) -> IssuedCertificate:
        """Answer in one process of the hub, from its start to its end."""
        enrolment = self.enrolment()
        await enrolment.open()
        try:
            if isinstance(document, RenewalRequest):
                return await enrolment.renew(document, shown(self.shows))
            return await enrolment.enrol(document)
        finally:
            await enrolment.close()
