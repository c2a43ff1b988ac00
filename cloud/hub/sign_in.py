"""Sign-in of users at a hub: with passwords of a file or of the registry, or with tokens of an issuer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from cloud.hub.core import HubCore
from cloud.hub.opening import HubConfiguration, HubError
from cloud.hub.peers import DEFAULT_TENANT, tenants_of
from cloud.hub.registry.notices import NoticeTopic
from cloud.hub.shared_sign_outs import SharedSignOuts
from cloud.hub.shared_users import SharedUsers
from edge.broker.configuration import AuthenticationMode
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.credentials import CredentialsError, CredentialSnapshot
from edge.broker.security.followed_users import FollowedUsers
from edge.broker.security.issuer import Issuer
from edge.broker.security.verification_threads import VerificationThreads


class HubGate:
    """Authenticator of a hub, and the issuer of tokens if there is one."""

    def __init__(self, configuration: HubConfiguration, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._threads = VerificationThreads()
        self.issuer: Issuer | None = None
        """Issuer of the users' tokens; None if they have passwords."""
        mode = AuthenticationMode.STANDARD
        if configuration.dev:
            mode = AuthenticationMode.NONE
        elif configuration.oidc is not None:
            mode, self.issuer = AuthenticationMode.EXTERNAL, Issuer(configuration.oidc, configuration.data)
        self.authenticator = Authenticator(mode, worker=self._threads, clock=clock, bearer=self.issuer)

    def stop(self) -> None:
        """Stop the threads that verify passwords."""
        self._threads.stop()


class HubSignIn:
    """Users of a hub and their logouts. `start`, later `stop`."""

    def __init__(self, core: HubCore, gate: HubGate, open_spaces: Callable[[Iterable[str]], None]) -> None:
        """`open_spaces` gets the tenants of all users after each change. Raises `HubError`."""
        self._tenants = core.configuration.tenants
        self._authenticator, self._issuer = gate.authenticator, gate.issuer
        self._open_spaces = open_spaces
        self._sign_outs = self._follow_sign_outs(core)
        self.users = self._follow_users(core)
        """Users with passwords: in the registry if one is configured, else in the data directory; None without."""

    @property
    def file(self) -> FollowedUsers | None:
        """Users of this hub that are in a file."""
        return self.users if isinstance(self.users, FollowedUsers) else None

    @property
    def trouble(self) -> str | None:
        """Why users or their changes are not in effect; None if they are."""
        if self._issuer is not None:
            unknown = self._sign_outs.trouble if self._sign_outs is not None else None
            return self._issuer.overdue or (f"logouts at other hubs are not known: {unknown}" if unknown else None)
        why = self.users.trouble if self.users is not None else None
        return f"changes of users are not in effect: {why}" if why is not None else None

    async def start(self) -> None:
        """Load users, and open the spaces of their tenants. Raises `HubError`."""
        if self._sign_outs is not None:
            await self._sign_outs.start()
        if self._issuer is not None:
            self._issuer.start(self._authenticator.token_grants)
        if self.users is None:
            self._open_spaces((DEFAULT_TENANT, *self._tenants.named))
            return
        self._authenticator.call_when_unknown(self.users.reload_if_changed)
        try:
            await self.users.start()
        except CredentialsError as error:
            raise HubError(str(error)) from error

    async def stop(self) -> None:
        """Stop following users and logouts, each also after an error of another one. Idempotent."""
        async with contextlib.AsyncExitStack() as ends:
            for part in (self._sign_outs, self._issuer, self.users):
                if part is not None:
                    ends.push_async_callback(part.stop)

    def _follow_sign_outs(self, core: HubCore) -> SharedSignOuts | None:
        """Follow the logouts of people, which count at every hub; None where people do not sign in at an issuer."""
        oidc = core.configuration.oidc
        if core.configuration.dev or oidc is None or oidc.client_id is None:
            return None
        sign_outs = self._authenticator.sign_outs
        return SharedSignOuts(core.registry, oidc.issuer, sign_outs, core.hint(NoticeTopic.SIGN_OUTS))

    def _follow_users(self, core: HubCore) -> FollowedUsers | SharedUsers | None:
        if not self._authenticator.passwords:
            return None
        data = core.configuration.data
        if core.configuration.registry is not None:
            return SharedUsers(core.registry, data, self._take, core.hint(NoticeTopic.USERS))
        try:
            return FollowedUsers(data, self._take)
        except CredentialsError as error:
            raise HubError(str(error)) from error

    def _take(self, snapshot: CredentialSnapshot) -> None:
        """Set the users, and open the spaces of their tenants."""
        self._authenticator.update(snapshot)
        self._open_spaces(tenants_of(snapshot.users))
