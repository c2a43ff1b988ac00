"""Coverage-guided fuzzing of MQTT streams, by hand:

python -m tests.property.fuzz.atheris_mqtt -max_total_time=600
"""

from __future__ import annotations

import sys

from tests.property.fuzz.harness import run

if __name__ == "__main__":
    run("mqtt", sys.argv[1:])
