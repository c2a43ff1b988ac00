"""Run one target under atheris, until the CPU time is used or there is a finding.

    python -m tests.property.fuzz.harness TARGET [--seconds N] [--work FOLDER] [libFuzzer's arguments]

FOLDER gets the corpus, findings (`finding-…`) and the resources used. The harness replays a file among the arguments.
Atheris is not a dependency: `pip install atheris`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

RSS_MIB_MAX: Final = 1_024
"""Memory limit at which libFuzzer ends the run: inputs must not accumulate memory."""
INPUT_BYTES_MAX: Final = 8_192
INPUT_S_MAX: Final = 10.0
"""Limit for an input in CPU seconds: next to other work the elapsed time is arbitrary."""
HANGS_S: Final = 600
"""Seconds after which libFuzzer considers an input endless."""
NOTED_EVERY_S: Final = 5.0
"""CPU seconds between two records of the resources used."""
WARM: Final = 0.2
"""Share of a run after which the growth of memory counts: code and corpus are loaded by then."""
NO_ATHERIS: Final = 3
"""Exit code."""
CORPUS: Final = "corpus"
PROGRESS: Final = "progress.json"
"""Name of the progress file in the folder of a target."""
INSTRUMENTED: Final = ("bridge", "edge", "cloud", "h11", "wsproto", "yaml")


def work_folder() -> Path:
    """Return the default folder for targets, outside of the repository."""
    return Path(tempfile.gettempdir()) / "waypost-fuzz"


class Meter:
    """Counts inputs and records resources as it goes, as a run may end at any input."""

    def __init__(self, seconds: float, progress: Path) -> None:
        """Create a meter. The process exits after `seconds` of CPU time. `progress` is the file of records."""
        self._seconds, self._progress = seconds, progress
        self._began_s = time.process_time()
        self._next_s = 0.0
        self._inputs = 0
        self._warm_mib = 0.0

    def count(self) -> None:
        """Count an input."""
        self._inputs += 1
        used_s = time.process_time() - self._began_s
        if used_s < self._next_s:
            return
        self._next_s = min(used_s + NOTED_EVERY_S, self._seconds)
        if not self._warm_mib and used_s >= WARM * self._seconds:
            self._warm_mib = _resident_mib()
        self._note(used_s)
        if used_s >= self._seconds:
            os._exit(0)  # without an exception, which libFuzzer would report as a finding

    def _note(self, used_s: float) -> None:
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        grew_mib = _resident_mib() - self._warm_mib if self._warm_mib else 0.0
        noted = {"inputs": self._inputs, "cpu_s": used_s, "peak_mib": peak_mib, "grew_mib": grew_mib}
        written = self._progress.with_suffix(".new")
        written.write_text(json.dumps(noted))
        written.replace(self._progress)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def fuzz(name: str, seconds: float, work: Path, arguments: Sequence[str]) -> None:
    """Fuzz the target. Does not return. Exits 3 without atheris."""
    try:
        import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: PLC0415
    except ImportError:
        print("atheris is not installed: pip install atheris (or run the same by hypothesis: pytest)", file=sys.stderr)
        sys.exit(NO_ATHERIS)
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        from tests.property.fuzz.targets import target_of  # noqa: PLC0415
    target = target_of(name)
    options = [
        f"-rss_limit_mb={RSS_MIB_MAX}",
        f"-timeout={HANGS_S}",
        f"-report_slow_units={HANGS_S}",
        f"-max_len={INPUT_BYTES_MAX}",
    ]
    options += [f"-artifact_prefix={work}/finding-", *arguments]
    if not any(Path(argument).is_file() for argument in arguments):
        options += [str(work / CORPUS), str(_written(target.seeds, work / "seeds"))]
    meter = Meter(seconds, work / PROGRESS)

    def one(data: bytes) -> None:
        began_s = time.process_time()
        with contextlib.suppress(*target.raises):
            target.take(data)
        took_s = time.process_time() - began_s
        assert took_s < INPUT_S_MAX, f"one input took {took_s:.1f} s"
        meter.count()

    atheris.Setup([sys.argv[0], *options], one)
    atheris.Fuzz()


def _written(seeds: Sequence[bytes], folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for i, seed in enumerate(seeds):
        (folder / f"seed-{i}").write_bytes(seed)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--work", type=Path)
    options, arguments = parser.parse_known_args()
    work = options.work or work_folder() / options.target
    (work / CORPUS).mkdir(parents=True, exist_ok=True)
    fuzz(options.target, options.seconds, work, arguments)


if __name__ == "__main__":
    main()
