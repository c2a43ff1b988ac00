"""Install the requirements of Spark, once: `python -m spark.setup install [s3]` jars, `… archive` the class archive."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from spark import java
from spark.connector.jar_set import DELTA, SETS
from spark.connector.repository import ConnectorMissing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `install [SET] [--from DIR]`, `jars [SET]` or `archive`; exit codes 0 done, 1 failed."""
    parser = argparse.ArgumentParser(prog="python -m spark.setup", description="Install what Spark needs, once.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    bring = verbs.add_parser("install", help="install jars into this environment")
    show = verbs.add_parser("jars", help="print the paths of installed jars, for `spark-submit --jars`")
    for verb in (bring, show):
        verb.add_argument("set", nargs="?", choices=SETS, default=DELTA.name, help="delta (default); s3: for buckets")
    bring.add_argument("--from", dest="source", type=Path, help="a folder that holds the jars (no network needed)")
    verbs.add_parser("archive", help="make the class archive that shortens every later start (optional)")
    options = parser.parse_args(arguments)
    try:
        if options.verb == "install":
            jars = SETS[options.set]
            result = "installed" if jars.install(options.source) else "already there"
            print(f"{result}: {jars.folder()}", file=sys.stderr)  # noqa: T201 - this is the command's output
        elif options.verb == "jars":
            print(",".join(map(str, SETS[options.set].paths_with_required())))  # noqa: T201
        else:
            from spark import class_archive  # noqa: PLC0415 - pulls in Spark, which `install` must not need

            print(class_archive.make_archive(), file=sys.stderr)  # noqa: T201
    except (ConnectorMissing, java.JavaMissing) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except OSError as error:
        print(f"error: {error.filename or sys.prefix}: {error.strerror or error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
