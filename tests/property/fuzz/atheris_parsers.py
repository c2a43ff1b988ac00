"""Coverage-guided fuzzing of one parser, by hand:

python -m tests.property.fuzz.atheris_parsers batch -max_total_time=600
"""

from __future__ import annotations

import sys

from tests.property.fuzz.harness import run_parser

if __name__ == "__main__":
    run_parser(sys.argv[1], sys.argv[2:])
