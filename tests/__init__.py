"""Tests, and what they share.

Processes that import this run the Python sources: tests reach into the code, and break it on purpose, and the simulator
gives it sets that keep their order. The programs they start run what users have, the hot modules compiled.
``WAYPOST_MODULES=native`` has this process run those as well (`tests/unit/test_native.py` does so with many tests).
"""

import os
import sys

from bridge.native import SETTING, NativeFinder

if os.environ.get(SETTING) != "native":
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, NativeFinder)]
