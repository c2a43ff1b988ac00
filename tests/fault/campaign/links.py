"""`python -m tests.fault.campaign.links PORT COUNT BYTES_S`: narrow links to the hub at a port, in one process.

It prints their ports as JSON, and for each line of its input the bytes that have passed each one, up and down.
"""

from __future__ import annotations

import contextlib
import json
import sys

from tests.bench.narrow_link import NarrowLink


def main(port: int, count: int, bytes_s: float) -> None:
    """Forward until the input ends."""
    with contextlib.ExitStack() as opened:
        links = [opened.enter_context(NarrowLink(port)) for _ in range(count)]
        for each in links:
            each.bytes_s = bytes_s
        print(json.dumps([each.port for each in links]), flush=True)
        for _ in sys.stdin:  # each line is a question
            print(json.dumps([(each.up_bytes, each.down_bytes) for each in links]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
