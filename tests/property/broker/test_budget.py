"""Accounts of a budget: after charges and refunds in any order, every account holds the sum of those below it."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from edge.broker.model.budget import Budget, MemoryAccount

MEMORY = 1 << 20
USERS = st.sampled_from(["", "joe", "ann"])
ADDRESSES = st.sampled_from(["192.0.2.1", "192.0.2.2"])


class Held:
    """Connection as seen by a budget: an identity, and the account that it counts for."""

    def __init__(self, account: MemoryAccount) -> None:
        self.account = account
        self.bytes = 0


class Accounts(RuleBasedStateMachine):
    """Connections that open, log in, charge and refund memory, and close."""

    connections = Bundle("connections")

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(MEMORY, "default")
        self.open: list[Held] = []

    @rule(target=connections, address=ADDRESSES, cost=st.integers(0, 5_000))
    def begin(self, address: str, cost: int) -> Held:
        connection = Held(self.budget.unauthenticated_at(address))
        connection.account.join()
        self.open.append(connection)
        self._hold(connection, cost)
        return connection

    @rule(connection=connections, user=USERS)
    def identify(self, connection: Held, user: str) -> None:
        account = self.budget.space.user_at(user, connection.account.name)
        held = connection.bytes
        if account is not connection.account:
            self._hold(connection, 0)
            connection.account.leave()
            connection.account = account
            account.join()
        self._hold(connection, held)

    @rule(connection=connections, held=st.integers(0, MEMORY))
    def hold(self, connection: Held, held: int) -> None:
        self._hold(connection, held)

    @rule(connection=consumes(connections), holds_nothing_first=st.booleans())
    def end(self, connection: Held, holds_nothing_first: bool) -> None:
        if holds_nothing_first:
            self._hold(connection, 0)
            connection.account.leave()
        else:
            connection.account.leave()
            self._hold(connection, 0)
        self.open.remove(connection)

    def _hold(self, connection: Held, held: int) -> None:
        connection.bytes = held
        connection.account.hold(connection, held)

    @invariant()
    def every_account_holds_the_sum_below_it(self) -> None:
        self._check(self.budget.gateway)
        assert self.budget.gateway.bytes == sum(connection.bytes for connection in self.open)
        assert self.budget.gateway.connections == len(self.open)

    def _check(self, account: MemoryAccount) -> None:
        assert account.bytes == sum(account.holders.values()) + sum(each.bytes for each in account.accounts.values())
        for each in account.accounts.values():
            self._check(each)

    @invariant()
    def accounts_are_there_while_somebody_is_in_them(self) -> None:
        wanted = {id(connection.account) for connection in self.open}
        pools = (self.budget.unauthenticated, self.budget.space)
        found = {id(leaf) for pool in pools for leaf in _leaves(pool) if leaf is not pool}
        assert found == wanted

    @invariant()
    def the_greediest_is_where_most_is_held(self) -> None:
        greediest = self.budget.gateway.largest_holder()
        if self.budget.gateway.bytes:
            pool = max(self.budget.gateway.accounts.values(), key=lambda each: each.bytes)
            assert greediest.holders
            assert greediest.by_size()[0][1] == max(greediest.holders.values())
            above = greediest
            while above.parent is not self.budget.gateway:
                assert above.parent is not None
                above = above.parent
            assert above.bytes == pool.bytes

    @invariant()
    def exceeded_is_the_nearest_above_its_bound(self) -> None:
        for connection in self.open:
            exceeded = connection.account.exceeded()
            path = []
            above: MemoryAccount | None = connection.account
            while above is not None:
                path.append(above)
                above = above.parent
            assert exceeded is next((each for each in path if each.bytes > each.bytes_max), None)
            assert connection.account.has_room(0) is (exceeded is None)

    def teardown(self) -> None:
        for connection in self.open:
            connection.account.hold(connection, 0)
            connection.account.leave()
        assert self.budget.gateway.bytes == self.budget.gateway.connections == 0
        assert not self.budget.space.accounts
        assert not self.budget.unauthenticated.accounts


def _leaves(account: MemoryAccount) -> list[MemoryAccount]:
    below = [leaf for each in account.accounts.values() for leaf in _leaves(each)]
    return below or [account]


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
