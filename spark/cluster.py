"""Requirements of a session on a cluster: jars and our own code on the executors.

Executors run the driver's code, which is sent to them. Packages of others have to be installed there (those of the
extra `spark`): the same Python at the same path, an image, or an archive named by `spark.archives` that
`spark.pyspark.python` points into.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark.connector.jar_set import JarSet
from spark.connector.repository import ConnectorMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON: Final = "spark.pyspark.python"
_PACKAGE: Final = Path(__file__).parent
_ROOT: Final = _PACKAGE.parent
_CLOUD: Final = _ROOT / "cloud"
_BRIDGE: Final = _ROOT / "bridge"
_PROOF: Final = {"delta": "io/delta/sql/DeltaSparkSessionExtension.class", "s3": "waypost/ConditionalLogStore.class"}
"""A class that only this set of jars has."""


def is_submitted() -> bool:
    """Return whether `spark-submit` started this program; then a JVM runs with its master and jars."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def executor_python(settings: Mapping[str, str]) -> str:
    """Return the Python of the executors: the configured one, else that of this program."""
    return settings.get(PYTHON) or os.environ.get("PYSPARK_PYTHON") or sys.executable


def send_code(session: SparkSession) -> None:
    """Send this package, and what it needs to write data files, to the executors."""
    from pyspark import SparkFiles  # noqa: PLC0415 - half a second that `--help` must not pay

    # In the folder of the session, which Spark deletes at its end.
    packed = Path(SparkFiles.getRootDirectory()).parent / "waypost.zip"
    pack_code(packed)
    session.sparkContext.addPyFile(str(packed))


def pack_code(packed: Path) -> None:
    """Write the archive of the modules that executors import."""
    places = (*_PACKAGE.rglob("*.py"), _CLOUD / "__init__.py", *(_CLOUD / "place").rglob("*.py"))
    secrets = (_BRIDGE / "__init__.py", _BRIDGE / "hidden.py")
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted((*places, *secrets)):
            file.write(path, path.relative_to(_ROOT))


def require_jars(session: SparkSession, jars: JarSet) -> None:
    """Raise `ConnectorMissing` unless a JVM that `spark-submit` started has these jars."""
    java: Any = session.sparkContext._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    for one in filter(None, (jars.requires, jars)):
        if loader.getResource(_PROOF[one.name]) is None:
            raise ConnectorMissing(
                f"spark-submit was started without {one.title}: give it --jars with what "
                f"`{sys.executable} -P -m spark.setup jars {jars.name}` prints"
            )
