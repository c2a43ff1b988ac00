"""A real API server accepts what the chart renders: each kind by its schema, its rules and its admission.

Needs the programs of `tests.support.kubernetes_programs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from tests.support.api_server import ApiServer
from tests.support.helm import CHART, PROFILES
from tests.support.pods import templates_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAMESPACE, PODS = "waypost", "waypost-pods"
"""The second namespace has accounts for pods, which Helm would refuse to take over in the first one."""
WITHOUT_MODULE: Final = {"KeycloakRealmImport"}
"""Kinds without a definition in any registry of packages. Checked if `DEFINITIONS` has a file with it."""
RESTRICTED: Final = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("server")) as started:
        for name in (NAMESPACE, PODS):
            metadata = {"name": name, "labels": RESTRICTED}
            started.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        started.define()
        yield started


def rendered(server: ApiServer, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what Helm renders for this server, with the versions that it serves; hooks too."""
    file = server.folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = server.helm("template", "fleet", str(CHART), f"--namespace={NAMESPACE}", "--validate", f"--values={file}")
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each is not None]


def refused(server: ApiServer, resources: list[dict[str, Any]], namespace: str = NAMESPACE) -> str:
    """Return what the server says against resources: errors, unknown fields, warnings."""
    done = server.kubectl(
        "create", "--dry-run=server", "--validate=strict", f"--namespace={namespace}", "--filename=-",
        given=yaml.safe_dump_all(resources),
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == len(resources) or done.stderr
    return done.stderr


def without(resources: list[dict[str, Any]], kinds: set[str]) -> list[dict[str, Any]]:
    return [each for each in resources if each["kind"] not in kinds]


class TestDryRun:
    @pytest.mark.parametrize("name", PROFILES)
    def test_everything_is_accepted_without_a_warning(self, server: ApiServer, name: str) -> None:
        resources = without(rendered(server, PROFILES[name]), WITHOUT_MODULE)
        kinds = sorted({each["kind"] for each in resources})
        print(f"{name}: {len(resources)} resources of {len(kinds)} kinds: {', '.join(kinds)}")
        assert refused(server, resources) == ""

    @pytest.mark.parametrize("name", PROFILES)
    def test_pods_are_admitted_where_rights_are_restricted(self, server: ApiServer, name: str) -> None:
        """A Deployment is accepted whatever its pods are; only the pods themselves would be refused."""
        found = rendered(server, PROFILES[name])
        accounts = [each for each in found if each["kind"] == "ServiceAccount"]
        server.apply(*accounts, namespace=PODS)
        pods = [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{at}", **template["metadata"]}, "spec": spec}
            for at, template in enumerate(templates_of(found))
            for spec in [{**template["spec"], "restartPolicy": "Never"}]
        ]
        assert pods
        assert refused(server, pods, PODS) == ""

    def test_realm_is_accepted_where_its_definition_is(self, server: ApiServer) -> None:
        if "KeycloakRealmImport" not in server.define():
            pytest.skip("Keycloak's definition is in no package: add its file to the folder of definitions")
        found = rendered(server, PROFILES["everything"])
        assert refused(server, [each for each in found if each["kind"] in WITHOUT_MODULE]) == ""

    def test_a_wrong_field_is_refused(self, server: ApiServer) -> None:
        """The check itself can fail: in a resource of Kubernetes, and in one of an operator."""
        for kind in ("Deployment", "Cluster"):
            [each, *_] = [each for each in rendered(server, PROFILES["everything"]) if each["kind"] == kind]
            each["spec"]["instanses"] = 3
            assert 'unknown field "spec.instanses"' in refused(server, [each])
