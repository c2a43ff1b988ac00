"""Session that starts and stops: loads the classes that every start loads. For `spark.class_archive` only.

`python -m spark.warmup JVM_OPTION...`
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spark import session


def main(arguments: Sequence[str]) -> None:
    """Start a session, and let the JVM exit normally, so that it writes its archive."""
    session.stop(session.start("waypost-warmup", session.SessionOptions(load="small", jvm=tuple(arguments))))


if __name__ == "__main__":
    main(sys.argv[1:])
