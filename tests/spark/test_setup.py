"""Set-up: the connector's jars, Java and the class archive, without a network and without Spark's JVM."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pyspark
import pytest

from spark import class_archive, cluster, java, setup
from spark.connector import pins, repository
from spark.connector.jar_set import DELTA, S3, SETS, JarSet
from spark.connector.pins import Jar
from spark.connector.repository import ConnectorMissing
from tests.conftest import ROOT

CONTENT = b"not really a jar"
THING = JarSet("thing", "the thing", (Jar("org.example", "thing", "1", hashlib.sha256(CONTENT).hexdigest()),))


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty environment, and a folder with the one required jar."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "thing-1.jar").write_bytes(CONTENT)
    return source


class TestInstall:
    def test_from_a_folder_once(self, environment: Path) -> None:
        with pytest.raises(ConnectorMissing, match="install thing"):
            THING.paths()
        assert THING.install(environment) is True
        assert [jar.name for jar in THING.paths()] == ["thing-1.jar"]
        assert THING.install(environment) is False
        assert [path.name for path in THING.folder().parent.iterdir()] == [THING.pins()]

    def test_a_jar_that_is_not_the_pinned_one_is_refused(self, environment: Path) -> None:
        (environment / "thing-1.jar").write_bytes(b"something else")
        with pytest.raises(ConnectorMissing, match=r"pinned: thing-1\.jar"):
            THING.install(environment)
        assert not THING.folder().exists()

    def test_a_damaged_installation_is_mended(self, environment: Path) -> None:
        THING.install(environment)
        (THING.folder() / "thing-1.jar").write_bytes(b"")
        assert THING.install(environment) is True
        assert repository.find_wrong(THING.jars, THING.folder()) == []

    def test_a_folder_without_the_jars_says_which(self, environment: Path, tmp_path: Path) -> None:
        with pytest.raises(ConnectorMissing, match=r"thing-1\.jar"):
            THING.install(tmp_path)

    def test_an_unreachable_repository_is_one_clear_error(
        self, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", (tmp_path / "nowhere").as_uri() + "/")
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ConnectorMissing, match="--from FOLDER") as refused:
            THING.install()
        assert "java:" in str(refused.value)
        assert "mvn: not installed" in str(refused.value)
        assert not THING.folder().exists()

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
        assert THING.install() is True
        assert repository.find_wrong(THING.jars, THING.folder()) == []


class TestSets:
    def test_the_jars_are_of_the_version_of_the_wheel(self) -> None:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert f"delta-spark=={pins.DELTA_VERSION}" in extras["spark"]

    def test_pins_are_whole(self) -> None:
        for jars in SETS.values():
            assert all(len(jar.sha256) == 64 and jar.version for jar in jars.jars)
            assert len({jar.file_name for jar in jars.jars}) == len(jars.jars)
            assert jars.pins().startswith(f"{jars.name}-")

    def test_the_client_of_object_stores_is_of_sparks_hadoop(self) -> None:
        shipped = Path(pyspark.__file__).parent / "jars"
        assert (shipped / f"hadoop-client-api-{pins.HADOOP_VERSION}.jar").is_file()

    def test_what_spark_ships_is_not_brought(self) -> None:
        shipped = {path.name.rpartition("-")[0] for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
        assert not {jar.artifact for jars in SETS.values() for jar in jars.jars} & shipped

    def test_a_set_that_needs_another_says_so(self, environment: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert setup.main(["install", "s3", "--from", str(environment)]) == 1
        assert "spark.setup install delta" in capsys.readouterr().err

    def test_another_source_is_another_set(self, tmp_path: Path) -> None:
        source = tmp_path / "Other.scala"
        source.write_text("class Other")
        assert dataclasses.replace(S3, source=source).pins() != S3.pins()

    @pytest.mark.slow
    def test_the_class_of_our_own_is_compiled_by_what_spark_ships(self, tmp_path: Path) -> None:
        assert S3.source is not None
        repository.compile_scala(S3.source, DELTA.paths(), tmp_path / "made.jar")
        with zipfile.ZipFile(tmp_path / "made.jar") as made:
            assert "waypost/ConditionalLogStore.class" in made.namelist()
        broken = tmp_path / "Broken.scala"
        broken.write_text("class Broken extends Nothing.there")
        with pytest.raises(ConnectorMissing, match=r"Broken\.scala"):
            repository.compile_scala(broken, (), tmp_path / "none.jar")


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
        assert java.find() == java.Java(right, 21, "21.0.8")

    def test_none_says_what_to_install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(java, "DEBIAN_HOMES", str(tmp_path))
        monkeypatch.setattr(java, "_find_wheel", lambda: None)
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

    @pytest.mark.parametrize(
        ("vm", "build"),
        [
            ("OpenJDK 64-Bit Server VM (build 17.0.21+10-Debian-1deb12u1, mixed mode, sharing)",
             "17.0.21+10-Debian-1deb12u1"),
            ("OpenJDK 64-Bit Server VM Temurin-17.0.9+9 (build 17.0.9+9, mixed mode)", "Temurin-17.0.9+9-17.0.9+9"),
            ("Java HotSpot(TM) 64-Bit Server VM (build 17.0.9+11-LTS-201, mixed mode)", "17.0.9+11-LTS-201"),
            ("Some VM of Its/Own (build 17 beta, interpreted)", "of_Its_Own-17_beta"),
        ],
    )  # fmt: skip
    def test_the_build_names_vendor_and_exact_version(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vm: str, build: str
    ) -> None:
        home = self.fake(tmp_path / "java", "17.0.9")
        with (home / "bin" / "java").open("a") as script:
            script.write(f"echo 'OpenJDK Runtime Environment (build of another line)' >&2\necho '{vm}' >&2\n")
        monkeypatch.setenv("JAVA_HOME", str(home))
        assert java.find() == java.Java(home, 17, build)


class TestArchive:
    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> java.Java:
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        (tmp_path / "share" / "waypost").mkdir(parents=True)
        return java.Java(tmp_path, 17, "17.0.20+8-Debian")

    def test_no_archive_is_no_option_and_no_notice(self, home: java.Java) -> None:
        assert (class_archive.jvm_options(home), class_archive.stale_notice(home)) == ((), None)
        class_archive.archive_path(home).touch()
        assert class_archive.jvm_options(home)[0] == f"-XX:SharedArchiveFile={class_archive.archive_path(home)}"
        assert class_archive.stale_notice(home) is None

    def test_an_archive_of_the_java_before_an_update_is_noticed(self, home: java.Java) -> None:
        class_archive.archive_path(home).touch()
        updated = dataclasses.replace(home, build="17.0.21+10-Debian")
        assert class_archive.jvm_options(updated) == ()
        said = class_archive.stale_notice(updated) or ""
        assert "now 17.0.21+10-Debian" in said
        assert "-P -m spark.setup archive` makes a new one" in said

    def test_a_new_archive_takes_the_place_of_former_ones(
        self, home: java.Java, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        former = [class_archive.archive_path(dataclasses.replace(home, build=build)) for build in ("17.0.19", "21.0.1")]
        former.append(former[0].with_name("classes-java17-spark4.2.0-delta-4.4.0-7f82f1c7c456.jsa"))
        for path in former:
            path.touch()
        others = [former[0].with_name("jars.jsa"), former[0].with_name("classes-java17.txt")]
        for path in others:
            path.touch()
        monkeypatch.setattr(DELTA.__class__, "paths", lambda _: [])
        monkeypatch.setattr(java, "find", lambda: home)

        def makes(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
            Path(command[-1].partition("=")[2]).write_bytes(b"classes")
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(subprocess, "run", makes)
        assert "class archive made" in class_archive.make_archive()
        assert set(former[0].parent.iterdir()) == {class_archive.archive_path(home), *others}

    def test_an_archive_that_fits_is_not_made_again(self, home: java.Java, monkeypatch: pytest.MonkeyPatch) -> None:
        class_archive.archive_path(home).touch()
        monkeypatch.setattr(DELTA.__class__, "paths", lambda _: [])
        monkeypatch.setattr(java, "find", lambda: home)
        monkeypatch.setattr(class_archive, "subprocess", None)  # a trial start would use it
        assert str(class_archive.archive_path(home)) in class_archive.make_archive()

    def test_when_none_is_made_the_former_one_stays(self, home: java.Java, monkeypatch: pytest.MonkeyPatch) -> None:
        former = class_archive.archive_path(dataclasses.replace(home, build="17.0.19"))
        former.touch()
        monkeypatch.setattr(DELTA.__class__, "paths", lambda _: [])
        monkeypatch.setattr(java, "find", lambda: home)
        monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", "no"))
        assert "no class archive: no" in class_archive.make_archive()
        assert former.exists()

    def test_an_environment_of_somebody_else_is_one_clear_error(
        self, home: java.Java, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def refused() -> str:
            raise PermissionError(13, "Permission denied", "/usr/share/waypost")

        monkeypatch.setattr(class_archive, "make_archive", refused)
        assert setup.main(["archive"]) == 1
        assert capsys.readouterr().err == "error: /usr/share/waypost: Permission denied\n"


def test_executors_import_what_they_run_from_the_archive_alone(tmp_path: Path) -> None:
    """An import outside of the archive failed every job on a cluster."""
    cluster.pack_code(tmp_path / "waypost.zip")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'waypost.zip')!r})\n"
        "import spark.file_writer, spark.transforms.readings, spark.jobs.anomalies, spark.kernels.decode\n"
        "ours = [one.__file__ for name, one in sys.modules.items()\n"
        "        if name.partition('.')[0] in ('bridge', 'cloud', 'edge', 'images', 'spark') and one.__file__]\n"
        "print([path for path in ours if 'waypost.zip' not in path], len(ours) > 10)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[] True\n", "")
