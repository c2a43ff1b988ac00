"""Set-up: the connector's jars, Java, the class archive. No network and no JVM of Spark's."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from spark import archive, connector, java
from spark.connector import ConnectorMissing, Jar


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of its own, and one pinned jar whose content is known."""
    content = b"not really a jar"
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.setattr(connector, "JARS", (Jar("org.example", "thing", "1", hashlib.sha256(content).hexdigest()),))
    source = tmp_path / "source"
    source.mkdir()
    (source / "thing-1.jar").write_bytes(content)
    return source


class TestInstall:
    def test_from_a_folder_once(self, environment: Path) -> None:
        with pytest.raises(ConnectorMissing, match=r"spark\.setup install"):
            connector.jars()
        assert connector.install(environment) is True
        assert [jar.name for jar in connector.jars()] == ["thing-1.jar"]
        assert connector.install(environment) is False
        assert [path.name for path in connector.folder().parent.iterdir()] == [connector.pins()]

    def test_a_jar_that_is_not_the_pinned_one_is_refused(self, environment: Path) -> None:
        (environment / "thing-1.jar").write_bytes(b"something else")
        with pytest.raises(ConnectorMissing, match=r"not what was pinned: thing-1\.jar"):
            connector.install(environment)
        assert not connector.folder().exists()

    def test_a_damaged_installation_is_mended(self, environment: Path) -> None:
        connector.install(environment)
        (connector.folder() / "thing-1.jar").write_bytes(b"")
        assert connector.install(environment) is True
        assert connector.wrong_jars(connector.folder()) == []

    def test_a_folder_without_the_jars_says_which(self, environment: Path, tmp_path: Path) -> None:
        with pytest.raises(ConnectorMissing, match=r"has no thing-1\.jar"):
            connector.install(tmp_path)

    def test_an_unreachable_repository_is_one_clear_error(
        self, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", (tmp_path / "nowhere").as_uri() + "/")
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ConnectorMissing, match="--from FOLDER") as refused:
            connector.install()
        assert "java:" in str(refused.value)
        assert "mvn: not installed" in str(refused.value)
        assert not connector.folder().exists()

    def test_a_repository_of_ones_own_is_used(
        self, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = tmp_path / "repository" / "org" / "example" / "thing" / "1"
        place.mkdir(parents=True)
        (place / "thing-1.jar").write_bytes((environment / "thing-1.jar").read_bytes())
        (place / "thing-1.pom").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId>"
            "<artifactId>thing</artifactId><version>1</version></project>"
        )
        monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", (tmp_path / "repository").as_uri() + "/")
        assert connector.install() is True
        assert connector.wrong_jars(connector.folder()) == []


def test_pins_are_whole() -> None:
    assert all(len(jar.sha256) == 64 and jar.version for jar in connector.JARS)
    assert len({jar.file_name for jar in connector.JARS}) == len(connector.JARS)
    assert connector.pins().startswith("delta-")


class TestJava:
    def fake(self, home: Path, version: str) -> Path:
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        program.chmod(0o755)
        return home

    def test_java_home_first_but_only_a_supported_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAVA_HOME", str(self.fake(tmp_path / "old", "11.0.2")))
        right = self.fake(tmp_path / "right", "21.0.8")
        monkeypatch.setenv("PATH", f"{right / 'bin'}:/usr/bin:/bin")
        assert java.find() == java.Java(right, 21)

    def test_none_says_what_to_install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(java, "DEBIAN_HOMES", str(tmp_path))
        monkeypatch.setattr(java, "_wheel", lambda: None)
        with pytest.raises(java.JavaMissing, match="openjdk-17-jre-headless"):
            java.find()

    def test_the_shim_drops_the_one_argument(self, tmp_path: Path) -> None:
        program = tmp_path / "it's java"
        program.write_text('#!/bin/sh\nfor a in "$@"; do echo "[$a]"; done\n')
        program.chmod(0o755)
        home = java.write_shim(program, tmp_path / "shim")
        said = subprocess.run(
            [home / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "two words"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.splitlines() == ["[-Xmx1g]", "[two words]"]
        before = (home / "bin" / "java").stat().st_mtime_ns
        java.write_shim(program, home)
        assert (home / "bin" / "java").stat().st_mtime_ns == before


def test_no_archive_is_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    home = java.Java(tmp_path, 17)
    assert archive.jvm_options(home) == ()
    path = archive.path(home)
    path.parent.mkdir(parents=True)
    path.touch()
    assert archive.jvm_options(home)[0] == f"-XX:SharedArchiveFile={path}"
