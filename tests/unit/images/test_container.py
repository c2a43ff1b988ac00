"""Sources of containers: no process runs as root, builds download nothing, and names agree."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import click
import pytest
import yaml

from edge.appliance.first_boot import environment
from edge.appliance.main import run
from images import programs, source
from images.container import building
from images.frozen import cross
from images.steps import BuildSteps
from spark.cli import analytics

ROLES = {"gateway": building.GATEWAY, "hub": building.HUB}


@pytest.mark.parametrize("folder", ROLES.values(), ids=ROLES)
def test_container_runs_unprivileged_with_one_volume(folder: Path) -> None:
    recipe = (folder / "Dockerfile").read_text()
    [service] = yaml.safe_load((folder / "docker-compose.yml").read_text())["services"].values()
    assert re.search(r"(?m)^USER 1883:1883$", recipe)
    assert re.findall(r"(?m)^VOLUME (.*)$", recipe) == ["/var/lib/waypost"]
    assert service["volumes"] == ["waypost:/var/lib/waypost"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    exposed = re.findall(r"(?m)^EXPOSE (.*)$", recipe)[0].split()
    assert [port.partition(":")[2] for port in service["ports"]] == exposed


@pytest.mark.parametrize("folder", [*ROLES.values(), building.ANALYTICS], ids=[*ROLES, "analytics"])
def test_build_downloads_nothing(folder: Path) -> None:
    recipe = (folder / "Dockerfile").read_text()
    assert not re.search(r"apt|curl|wget|http", recipe)
    assert "pip install" not in recipe or "--no-index" in recipe


def test_gateway_gets_every_known_variable() -> None:
    service = yaml.safe_load((building.GATEWAY / "docker-compose.yml").read_text())["services"]["gateway"]
    known = [environment.NAME, environment.HUB, environment.TOKEN, environment.FORWARD]
    known += [environment.PROXY, environment.KEEP_FREE]
    assert service["environment"] == known


def test_scripts_are_valid() -> None:
    subprocess.run(["/bin/sh", "-n", str(building.GATEWAY / "start")], check=True)
    assert (building.GATEWAY / "start").stat().st_mode & 0o111
    ast.parse((building.HUB / "health").read_text())


def test_folder_of_a_gateway_contains_its_packages(tmp_path: Path) -> None:
    made = tmp_path / "package-x86_64-0" / "waypost_1_amd64.deb"
    made.parent.mkdir()
    made.write_bytes(b"a package")
    folder = building.build_gateway(BuildSteps(tmp_path / "cache", lambda _: None), {"amd64": made})
    assert (folder / "packages" / made.name).read_bytes() == b"a package"
    assert sorted(path.name for path in folder.iterdir()) == ["Dockerfile", "docker-compose.yml", "packages", "start"]


@pytest.mark.parametrize(("machine", "said"), [
    ("x86_64", "sudo apt install buildah mmdebstrap"), ("aarch64", "does not run programs for arm64"),
])  # fmt: skip
def test_missing_tools_for_an_archive_are_reported_before_the_first_step(
    machine: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="x86_64"))
    monkeypatch.setattr(programs, "find", lambda name: None if machine == "x86_64" else name)
    monkeypatch.setattr(cross.require_emulation, "__defaults__", (tmp_path,))
    words = ["--oci", "--machine", machine, "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "made")]
    assert run(["image", "container", "gateway", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


class TestAnalytics:
    """Spark's jobs on Kubernetes: the specification, the image and the program match."""

    @pytest.fixture
    def specification(self) -> dict[str, Any]:
        described = yaml.safe_load((building.ANALYTICS / "spark-application.yaml").read_text())
        assert (described["apiVersion"], described["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
        found: dict[str, Any] = described["spec"]
        return found

    def test_program_exists_and_accepts_its_arguments(self, specification: dict[str, Any]) -> None:
        program = specification["mainApplicationFile"].rpartition("/site-packages/")[2]
        assert (source.ROOT / program).is_file()
        command, *arguments = specification["arguments"]
        job = analytics.commands[command]
        assert job.make_parser(click.Context(job)).parse_args(arguments)[0] == {"lake": "s3://fleet/lake"}
        assert specification["sparkVersion"] == version("pyspark")

    def test_container_runs_as_the_user_of_the_image(self, specification: dict[str, Any]) -> None:
        recipe = (building.ANALYTICS / "Dockerfile").read_text()
        for part in ("driver", "executor"):
            allowed = specification[part]["securityContext"]
            assert f"USER {allowed['runAsUser']}:{allowed['runAsGroup']}\n" in recipe
            assert (allowed["runAsNonRoot"], allowed["capabilities"]) == (True, {"drop": ["ALL"]})

    def test_key_comes_from_a_secret_and_goes_only_to_authenticated_executors(
        self, specification: dict[str, Any]
    ) -> None:
        assert set(specification["driver"]["envSecretKeyRefs"]) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
        assert "envSecretKeyRefs" not in specification["executor"]
        settings = specification["sparkConf"]
        assert (settings["spark.authenticate"], settings["spark.network.crypto.enabled"]) == ("true", "true")
        assert "AWS_SECRET" not in str(settings)

    def test_full_heap_leaves_room_for_python(self, specification: dict[str, Any]) -> None:
        """A driver with a heap of 1 GB, all of it in use, was killed at 1 433 MiB, before its first job."""
        for part in ("driver", "executor"):
            assert (specification[part]["memory"], specification[part]["memoryOverhead"]) == ("1g", "1g")

    def test_driver_and_executors_authenticate_with_a_secret_that_no_pod_shows(
        self, specification: dict[str, Any]
    ) -> None:
        """Without the file Spark writes a secret of its own into a variable of each executor's pod."""
        file = Path(specification["sparkConf"]["spark.authenticate.secret.file"])
        for part in ("driver", "executor"):
            [secret] = specification[part]["secrets"]
            assert (secret["path"], secret["secretType"]) == (str(file.parent), "Generic")
            told = (building.ANALYTICS / "spark-application.yaml").read_text()
            assert f"kubectl create secret generic {secret['name']} --from-file={file.name}=/dev/stdin" in told

    def test_driver_outside_of_the_operator_has_an_account_with_a_role(self) -> None:
        account, role, binding = yaml.safe_load_all((building.ANALYTICS / "driver-role.yaml").read_text())
        assert [one["kind"] for one in (account, role, binding)] == ["ServiceAccount", "Role", "RoleBinding"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert "secrets" not in [resource for rule in role["rules"] for resource in rule["resources"]]

    @pytest.mark.parametrize(
        ("arguments", "started"),
        [
            (
                ["driver", "--class", "a.Class", "file.py"],
                "bin/spark-submit --conf spark.driver.bindAddress=10.0.0.1 --conf "
                "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.1 --deploy-mode client --class a.Class file.py",
            ),
            (
                ["executor"],
                "bin/java -Da=b c -Dten=10 -Xms1g -Xmx1g -Dspark.master=k8s:// -cp HERE/conf:HERE/jars/* "
                "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend --driver-url spark://d "
                "--executor-id 1 --cores 2 --app-id app --hostname 10.0.0.2 --resourceProfileId 0 --podName pod-1",
            ),
            (["run", "--lake", "s3://b"], "bin/waypost lake run --lake s3://b"),
        ],
    )
    def test_role_starts_its_program(self, tmp_path: Path, arguments: list[str], started: str) -> None:
        assert self.started(tmp_path, arguments) == started

    def test_executor_reads_hadoop_settings_and_has_the_configured_jars(self, tmp_path: Path) -> None:
        told = {"SPARK_CLASSPATH": "/more/*", "HADOOP_CONF_DIR": "/opt/hadoop/conf"}
        assert " -cp HERE/conf:/opt/hadoop/conf:/more/*:HERE/jars/* " in self.started(tmp_path, ["executor"], told)

    @staticmethod
    def started(tmp_path: Path, arguments: list[str], told: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return the command that the entrypoint starts with these arguments, with stubs of Java, Spark and
        `waypost`."""
        folder = tmp_path / "bin"
        folder.mkdir()
        for name in ("java", "spark-submit", "waypost"):
            (folder / name).write_text(f'#!/bin/sh\necho bin/{name} "$@"\n')
            (folder / name).chmod(0o755)
        given = {"PATH": f"{folder}:/usr/bin:/bin", "SPARK_HOME": str(tmp_path), "JAVA_HOME": str(tmp_path)}
        given |= {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1", "SPARK_DRIVER_URL": "spark://d"}
        given |= {"SPARK_APPLICATION_ID": "app", "SPARK_RESOURCE_PROFILE_ID": "0"}
        executor = {"ID": "1", "CORES": "2", "MEMORY": "1g", "POD_IP": "10.0.0.2", "POD_NAME": "pod-1"}
        given |= {f"SPARK_EXECUTOR_{name}": value for name, value in executor.items()}
        given |= {"SPARK_JAVA_OPT_10": "-Dten=10", "SPARK_JAVA_OPT_2": "-Da=b c", **told}
        command = [str(building.ANALYTICS / "entrypoint"), *arguments]
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
        return done.stdout.strip().replace(str(tmp_path), "HERE")
