"""What a session on a cluster needs that one on this machine has: jars and our own code where its executors are.

Executors run the driver's code, whatever is installed where they are: it is sent to them. Of other people's packages
they need their own (those of the extra `spark`): the same Python at the same place, an image, or an archive that
`spark.archives` names and `spark.pyspark.python` points into.
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
_CLOUD: Final = _PACKAGE.parent / "cloud"
_PROOF: Final = {"delta": "io/delta/sql/DeltaSparkSessionExtension.class", "s3": "waypost/ConditionalLogStore.class"}
"""What each set of jars alone has."""


def submitted() -> bool:
    """Whether `spark-submit` has started this program: then there is a JVM, with the master and jars it was given."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def python(settings: Mapping[str, str]) -> str:
    """The Python of the executors: as it is set, else the one of this program."""
    return settings.get(PYTHON) or os.environ.get("PYSPARK_PYTHON") or sys.executable


def send_code(session: SparkSession) -> None:
    """Send executors this package, as it is here, and the one that writes data files."""
    from pyspark import SparkFiles  # noqa: PLC0415 - half a second that `--help` must not pay

    # In the folder of the session, which Spark deletes at its end.
    packed = Path(SparkFiles.getRootDirectory()).parent / "waypost.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted((*_PACKAGE.rglob("*.py"), _CLOUD / "__init__.py", *(_CLOUD / "place").rglob("*.py"))):
            file.write(path, path.relative_to(_PACKAGE.parent))
    session.sparkContext.addPyFile(str(packed))


def require(session: SparkSession, jars: JarSet) -> None:
    """Raise `ConnectorMissing` unless a JVM that somebody else has started has these jars."""
    java: Any = session.sparkContext._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    for one in filter(None, (jars.beside, jars)):
        if loader.getResource(_PROOF[one.name]) is None:
            raise ConnectorMissing(
                f"spark-submit was started without {one.title}: give it --jars with what "
                f"`{sys.executable} -P -m spark.setup jars {jars.name}` prints"
            )
