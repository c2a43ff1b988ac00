"""Program for `spark-submit`: `waypost lake` with the arguments that follow this file's name."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python looks first where a program's file is; the modules next to this one are parts of a package.
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]
    from spark.cli import analytics, report

    analytics.add_command(report)
    analytics(prog_name="waypost lake")
