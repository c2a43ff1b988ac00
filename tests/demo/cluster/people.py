"""People at the consoles of the hubs: they sign in at Keycloak, and look at the gateways at every hub."""

from __future__ import annotations

import html
import re
import ssl
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httpx

from tests.demo.cluster.realm import PASSWORD
from tests.demo.errors import DemoError

OPERATOR, VIEWER, STRANGER = "ann@default", "bob@default", "eve@default"
_BEGIN: Final = "/api/v1/session/oidc"
_FORM: Final = re.compile(r'<form[^>]*id="kc-form-login"[^>]*action="([^"]+)"')
_TIMEOUT_S: Final = 60.0


class PeopleAccount(NamedTuple):
    """Sign-ins, and what the hubs showed to those people."""

    hubs: int
    gateways: int
    operator_sees: Sequence[int]
    """Gateways that each hub shows to the operator, who signed in once, before the hubs restarted."""
    viewer_sees: Sequence[int]
    """The same for the viewer, who began to sign in at the first hub before its restart, and finished at the last."""
    stranger_sees: Sequence[int]
    """The same for the person without a role."""
    operator_changes: int
    """Hubs that let the operator make a token."""
    viewer_changes: int
    """Hubs that let the viewer make a token."""

    @property
    def adds_up(self) -> bool:
        """True if each person sees and may do the same at every hub, as the groups say."""
        everything = [self.gateways] * self.hubs
        seen = (list(self.operator_sees), list(self.viewer_sees), list(self.stranger_sees))
        changes = (self.operator_changes, self.viewer_changes)
        return seen == (everything, everything, [0] * self.hubs) and changes == (self.hubs, 0)

    def explain(self) -> str:
        """Return the comparison as one line."""
        operator, viewer, stranger = (
            "/".join(map(str, each)) for each in (self.operator_sees, self.viewer_sees, self.stranger_sees)
        )
        return (
            f"gateways that the hubs show to the operator {operator}, to the viewer {viewer}, to a person without a "
            f"role {stranger}; hubs where they may change something {self.operator_changes}, {self.viewer_changes}, 0"
        )


class Person:
    """Browser without scripts, with a new connection for each request."""

    def __init__(self, name: str, balancer: str, context: ssl.SSLContext) -> None:
        """`balancer`: address of the consoles behind the load balancer."""
        self.name = name
        self._balancer = balancer
        limits = httpx.Limits(max_keepalive_connections=0)
        self._browser = httpx.AsyncClient(verify=context, timeout=_TIMEOUT_S, limits=limits)

    async def close(self) -> None:
        """Close the browser."""
        await self._browser.aclose()

    async def begin(self, root: str) -> str:
        """Begin a sign-in at the hub with this address; return the address at Keycloak. Raises DemoError."""
        return self._led_to(await self._get(root, _BEGIN))

    async def sign_in(self, place: str) -> str:
        """Sign in at an address of Keycloak; return the address that it leads back to. Raises DemoError."""
        page = await self._browser.get(place)
        form = _FORM.search(page.text)
        if form is None:
            raise DemoError(f"Keycloak shows {self.name} no form: {page.status_code}", page.text[:2_000])
        for cookie in self._browser.cookies.jar:
            if cookie.path.startswith("/realms/"):
                cookie.secure = False  # browsers send secure cookies to loopback without TLS, too
        fields = {"username": self.name, "password": PASSWORD}
        return self._led_to(await self._browser.post(html.unescape(form.group(1)), data=fields))

    async def finish(self, root: str, answer: str) -> None:
        """Come back from Keycloak to the hub with this address. Raises DemoError when it refuses."""
        split = urlsplit(answer)
        page = self._led_to(await self._get(root, f"{split.path}?{split.query}"))
        if page != "/":
            raise DemoError(f"the sign-in of {self.name} ended at {page}")

    async def gateways(self, root: str) -> int:
        """Return the number of gateways that the hub with this address shows. Raises DemoError for an answer that is
        neither the list nor "not allowed"."""
        found = await self._get(root, "/api/v1/gateways")
        self._require(found, httpx.codes.OK, httpx.codes.FORBIDDEN)
        return len(found.json()["gateways"]) if found.status_code == httpx.codes.OK else 0

    async def may_change(self, root: str) -> bool:
        """Return True if the hub with this address makes a token for a new gateway. Raises DemoError as `gateways`."""
        headers = {"Host": urlsplit(self._balancer).netloc, "Origin": self._balancer.rstrip("/")}
        made = await self._browser.post(f"{root}api/v1/tokens", json={}, headers=headers)
        self._require(made, httpx.codes.CREATED, httpx.codes.FORBIDDEN)
        return made.status_code == httpx.codes.CREATED

    async def _get(self, root: str, target: str) -> httpx.Response:
        """Request a page of one hub under the name of the load balancer, as if that had chosen the hub."""
        headers = {"Host": urlsplit(self._balancer).netloc}
        return await self._browser.get(f"{root.rstrip('/')}{target}", headers=headers)

    def _require(self, answer: httpx.Response, *expected: int) -> None:
        if answer.status_code not in expected:
            raise DemoError(f"{answer.url} answered {self.name} with {answer.status_code}", answer.text[:2_000])

    def _led_to(self, answer: httpx.Response) -> str:
        if not answer.is_redirect:
            raise DemoError(f"{answer.url} answered {self.name} with {answer.status_code}", answer.text[:2_000])
        return answer.headers["location"]


class ConsolePeople:
    """Three people: an operator, a viewer, and one without a role."""

    def __init__(self, balancer: str, hubs: Sequence[str], gateways: int, context: ssl.SSLContext) -> None:
        """`balancer`, `hubs`: addresses of the consoles behind the load balancer, and of each hub."""
        self._balancer = balancer
        self._hubs = hubs
        self._gateways = gateways
        self._people = {name: Person(name, balancer, context) for name in (OPERATOR, VIEWER, STRANGER)}
        self._viewer_at = ""
        """Address at Keycloak to which the viewer was led."""

    async def begin(self) -> None:
        """Sign the operator in by the load balancer, and let the viewer begin at the first hub. Raises DemoError."""
        operator = self._people[OPERATOR]
        await operator.finish(self._balancer, await operator.sign_in(await operator.begin(self._balancer)))
        self._viewer_at = await self._people[VIEWER].begin(self._hubs[0])

    async def compare(self) -> PeopleAccount:
        """Sign the others in, the viewer at the last hub, and compare what the hubs show. Raises DemoError."""
        viewer, stranger = self._people[VIEWER], self._people[STRANGER]
        await viewer.finish(self._hubs[-1], await viewer.sign_in(self._viewer_at))
        await stranger.finish(self._balancer, await stranger.sign_in(await stranger.begin(self._balancer)))
        seen = {name: [await each.gateways(hub) for hub in self._hubs] for name, each in self._people.items()}
        operator_changes, viewer_changes = [
            sum([await self._people[name].may_change(hub) for hub in self._hubs]) for name in (OPERATOR, VIEWER)
        ]
        return PeopleAccount(
            len(self._hubs),
            self._gateways,
            seen[OPERATOR],
            seen[VIEWER],
            seen[STRANGER],
            operator_changes,
            viewer_changes,
        )

    async def close(self) -> None:
        """Close their browsers."""
        for each in self._people.values():
            await each.close()
