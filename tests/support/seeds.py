"""The seed of a run: printed, so that ``WAYPOST_SEED=n`` replays it."""

from __future__ import annotations

import os
import random


def chosen_seed(default: int | None = None) -> int:
    """Return ``WAYPOST_SEED``, a number or ``random``; otherwise `default`, or a random seed without one."""
    wanted = os.environ.get("WAYPOST_SEED", "random" if default is None else str(default))
    seed = random.randrange(1 << 32) if wanted == "random" else int(wanted)
    print(f"WAYPOST_SEED={seed}")
    return seed
