"""Rights by kind of user: the convention for topic names that firmware, simulated devices and documentation follow.

`%u` is replaced by the user's name. A device sends readings below ``plant/<user>/`` and reports its presence at
``status/<user>``, retained and as its last will. It receives commands at ``command/<user>`` and responds at
``command-response/<user>``, and receives receipts of landed messages at ``landing-receipt/<user>``. A viewer sees
console and metrics; an operator can also change everything there: configuration, users, stored messages, the uplink.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROFILES: Final[Mapping[str, tuple[str, ...]]] = {
    "sensor": (
        "send:plant/%u/#",
        "send:status/%u",
        "recv:command/%u/#",
        "send:command-response/%u/#",
        "recv:landing-receipt/%u",
    ),
    "viewer": ("view:#",),
    "operator": ("view:#", "manage:#"),
    "application": ("recv:plant/#", "recv:status/#", "send:command/#"),
}
"""Rights by profile, as `--allow` takes them."""
