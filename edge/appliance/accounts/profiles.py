"""Rights by kind of device: the one convention of names that firmware, simulated devices and the README follow.

`%u` stands for the user's name. A device sends readings below ``plant/<user>/``, says whether it is there at
``status/<user>`` (retained, and its last will), and hears commands at ``command/<user>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROFILES: Final[Mapping[str, tuple[str, ...]]] = {
    "sensor": ("send:plant/%u/#", "send:status/%u", "recv:command/%u/#"),
    "application": ("recv:plant/#", "recv:status/#", "send:command/#"),
}
"""Profile → rights, as `--allow` takes them."""
