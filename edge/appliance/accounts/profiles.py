"""Rights by kind of device: the one convention of names that firmware, simulated devices and the README follow.

`%u` stands for the user's name. A device sends readings below ``plant/<user>/``, says whether it is there at
``status/<user>`` (retained, and its last will), hears commands at ``command/<user>`` and responds to them at
``command-response/<user>``. A viewer sees the console and the metrics; an operator also pauses the uplink and changes
addresses over AMQP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROFILES: Final[Mapping[str, tuple[str, ...]]] = {
    "sensor": ("send:plant/%u/#", "send:status/%u", "recv:command/%u/#", "send:command-response/%u/#"),
    "viewer": ("view:#",),
    "operator": ("view:#", "manage:#"),
    "application": ("recv:plant/#", "recv:status/#", "send:command/#"),
}
"""Profile → rights, as `--allow` takes them."""
