"""Programs over Qpid JMS, compiled for one test run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

VERSION = "2.6.1"
POM = f"""<project>
<modelVersion>4.0.0</modelVersion><groupId>waypost</groupId><artifactId>jms</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.qpid</groupId><artifactId>qpid-jms-client</artifactId><version>{VERSION}</version>
</dependency></dependencies></project>
"""


def jms_jars() -> Path:
    """Return the folder of Qpid JMS and its dependencies, fetched by Maven once; skip the test if that fails."""
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        pytest.skip("Maven and a Java compiler are not installed (Debian: maven, default-jdk-headless)")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "waypost-tests"
    jars = cache / f"qpid-jms-{VERSION}"
    if not jars.exists():
        making = cache / f"qpid-jms-{VERSION}.{os.getpid()}"
        making.mkdir(parents=True)
        (making / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={making}/lib"]
        done = subprocess.run(command, cwd=making, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            pytest.skip(f"Maven cannot fetch Qpid JMS: {done.stdout[-200:]}")
        (making / "lib").rename(jars)
    return jars


def jms_program(folder: Path, name: str) -> list[str]:
    """Compile a program of `tests/support` into `folder`; return the command without arguments."""
    jars = jms_jars()
    source = Path(__file__).parent / f"{name}.java"
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(folder), str(source)], check=True, timeout=120)
    return ["java", "-Xmx128m", "-cp", f"{jars}/*:{folder}", name]
