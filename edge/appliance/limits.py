"""Limits of the gateway's process."""

from __future__ import annotations

from typing import Final

from bridge.limits import LINGERING_MAX
from edge.broker.http.limits import HTTP_POLLS_MAX, HTTP_STRANGERS_MAX, HTTP_USERS_MAX, HTTPS_STRANGERS_MAX
from edge.broker.limits import TENANT_SPACES_MAX

FILES_OF_A_SPACE: Final = 16
"""Open files of a further address space: store, its log and index, users, lock, with several handles each."""
FILES_BESIDE_CONNECTIONS: Final = (
    100
    + FILES_OF_A_SPACE * TENANT_SPACES_MAX
    + (HTTP_STRANGERS_MAX + HTTPS_STRANGERS_MAX + HTTP_USERS_MAX + HTTP_POLLS_MAX + LINGERING_MAX)
)
"""Open files in addition to one for each connection: HTTP connections, lingering sockets, and a few dozen for store,
logs, listeners and uplinks."""

STATUS_PROBLEMS_MAX: Final = 10
"""Problems in a status for the hub, the most serious ones: it is sent over metered links, and a person looks at the
gateway for more."""

STATUS_PROBLEM_CHARACTERS_MAX: Final = 200
"""Characters of the text of a problem in a status for the hub."""

STATUS_PROBLEMS_REPEATS: Final = 3
"""Statuses in a row with problems that have changed: one may be replaced before it is sent."""

STATUS_PROBLEMS_PERIOD: Final = 120
"""Statuses until unchanged problems are sent again, ten minutes: with ten problems 0.5 MB a day."""
