"""Coverage-guided fuzzing of AMQP streams, by hand:

python -m tests.property.fuzz.atheris_amqp -max_total_time=600
"""

from __future__ import annotations

import sys

from tests.property.fuzz.harness import run

if __name__ == "__main__":
    run("amqp", sys.argv[1:])
