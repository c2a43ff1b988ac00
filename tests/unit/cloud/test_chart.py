"""Helm chart of the hubs: values are checked and documented, pods have no rights, and named metrics exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from bridge.resources.endpoint import ListenEndpoint
from bridge.transport.listening import ANY_IPV6
from cloud.hub.cli import authority
from cloud.hub.configuration import parse
from cloud.hub.messaging.settings import address_of
from cloud.hub.tap.topic import CLIENT_ID
from edge.broker.http.oidc_api import CALLBACK
from tests.support.exposed_metrics import exposed_metrics
from tests.support.helm import CHART, EVERYTHING, PROFILES, SMALLEST, render, run_helm
from tests.support.pods import templates_of

RABBITMQ = {
    "caSecret": "messages-ca",
    "existingSecret": "messages-user",
    "rabbitmq": {"enabled": True, "tlsSecret": "messages-tls", "replies": ["app"]},
}
"""Message broker by its operators."""
DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return found


def defaults() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return values as Helm merges them."""
    both = {
        name: merged(base[name], value) if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        for name, value in more.items()
    }
    return {**base, **both}


def metrics_in(text: str) -> set[str]:
    """Return the Waypost metrics that expressions name, a histogram by its own name."""
    return set(re.findall(r"\bwaypost_\w+\b", text))


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def named(name: str, exposed: set[str]) -> bool:
    """Return whether a metric is exposed, also as a counter or a part of a histogram."""
    return bool({name, name.removesuffix("_total"), name.removesuffix("_bucket")} & exposed)


class TestValues:
    @pytest.mark.parametrize("values", PROFILES.values(), ids=PROFILES)
    def test_examples_are_accepted(self, values: dict[str, Any]) -> None:
        jsonschema.validate(merged(defaults(), values), schema())

    def test_every_value_is_in_the_schema(self) -> None:
        def missing(values: dict[str, Any], part: dict[str, Any], path: str) -> Iterator[str]:
            part = schema()["definitions"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
            for name, value in values.items():
                inner = part.get("properties", {}).get(name)
                if inner is None and "properties" in part:
                    yield f"{path}{name}"
                elif isinstance(value, dict) and inner is not None:
                    yield from missing(value, inner, f"{path}{name}.")

        assert list(missing(defaults(), schema(), "")) == []

    def test_required_values_have_no_default(self) -> None:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(defaults(), schema())

    @pytest.mark.parametrize(
        "wrong",
        [
            {"lake": {"place": "/var/lib/lake"}},
            {"registry": {"url": "sqlite:////registry.db"}},
            {"registry": {"url": "postgresql://waypost:secret@postgres/waypost"}},
            {"hub": {"applications": True}},
            {"hub": {"drainSeconds": 600}},
            {"hub": {"registry": "postgresql://other"}},
            {"hub": {"kafka": {"brokers": ["kafka:9092"]}}},
            {"kafka": {"brokers": ["kafka"]}},
            {"hub": {"messaging": {"url": "amqp://broker"}}},
            {"messaging": {"url": "broker:5671"}},
            {"messaging": {"rabbitmq": {"replicas": 2}}},
            {"messaging": {"rabbitmq": {"replies": ["Two words"]}}},
            {"names": []},
            {"replica": 3},
            {"autoscaling": {"connections": 20_001}},
        ],
        ids=str,
    )
    def test_values_that_cannot_work_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(merged(merged(defaults(), SMALLEST), wrong), schema())

    def test_version_is_that_of_the_product(self) -> None:
        version = re.search(r'^VERSION = "(.*)"$', (CHART.parents[2] / "bridge" / "version.py").read_text(), re.M)
        assert version is not None
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        assert chart["appVersion"] == version[1]


class TestMetrics:
    @pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
    def test_dashboard_names_existing_metrics(self, path: Path) -> None:
        dashboard, exposed = json.loads(path.read_text()), exposed_metrics()
        names = {name for text in expressions(dashboard) for name in metrics_in(text)}
        assert names
        assert [name for name in sorted(names) if not named(name, exposed)] == []

    @pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
    def test_panels_have_places_and_identities_of_their_own(self, path: Path) -> None:
        dashboard = json.loads(path.read_text())
        assert dashboard["uid"] == f"waypost-{path.stem}"
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            grid = panel["gridPos"]
            cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
            assert grid["x"] + grid["w"] <= 24
            assert not cells & taken
            taken |= cells
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(set(ids)) == len(ids)

    def test_there_is_one_for_each_part(self) -> None:
        assert [path.stem for path in DASHBOARDS] == ["fleet", "gateway", "hub", "lake"]

    def test_autoscaler_names_existing_metrics(self) -> None:
        names = metrics_in((CHART / "templates" / "hpa.yaml").read_text())
        assert names == {"waypost_hub_landing_oldest_seconds", "waypost_hub_connections"}
        assert names <= exposed_metrics()


def pod_specs(resources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [template["spec"] for template in templates_of(resources)]


def only(resources: list[dict[str, Any]], kind: str, *, of_authority: bool = False) -> dict[str, Any]:
    """Return the only resource of a kind, of the hubs or of the process with the authority's key."""
    found = [each for each in resources if each["kind"] == kind]
    [one] = [each for each in found if each["metadata"]["name"].endswith("-authority") is of_authority]
    return one


def volumes_of(spec: dict[str, Any]) -> Iterator[str]:
    """Yield the Secrets that a pod mounts or reads."""
    for volume in spec["volumes"]:
        sources = [volume, *volume.get("projected", {}).get("sources", ())]
        yield from (each["secret"].get("secretName") or each["secret"]["name"] for each in sources if "secret" in each)
    for container in spec["containers"]:
        yield from (
            each["valueFrom"]["secretKeyRef"]["name"] for each in container.get("env", ()) if "valueFrom" in each
        )


class TestRendered:
    """With Helm, or with what it has rendered of this chart."""

    @pytest.mark.parametrize("values", PROFILES.values(), ids=PROFILES)
    def test_lint_finds_nothing(self, values: dict[str, Any], tmp_path: Path) -> None:
        done = run_helm("lint", "--strict", str(CHART), values=values, folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_pods_have_no_rights(self, tmp_path: Path) -> None:
        values = merged(EVERYTHING, {"analytics": {"enabled": False}, "maintain": {"enabled": True}})
        specs = pod_specs(render(values, tmp_path))
        assert len(specs) == 6
        for spec in specs:
            assert spec["automountServiceAccountToken"] is False
            assert spec["securityContext"]["runAsNonRoot"] is True
            for container in spec["containers"]:
                security = container["securityContext"]
                assert security["readOnlyRootFilesystem"] is True
                assert security["allowPrivilegeEscalation"] is False
                assert security["capabilities"] == {"drop": ["ALL"]}
                assert "memory" in container["resources"]["limits"]

    def test_services_and_listeners_are_for_both_families(self, tmp_path: Path) -> None:
        service = {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}
        resources = render(merged(SMALLEST, {"service": service}), tmp_path)
        services = [each["spec"] for each in resources if each["kind"] == "Service"]
        assert [{name: each[name] for name in service} for each in services] == [service] * 2
        for spec in pod_specs([each for each in resources if each["kind"] == "Deployment"]):
            [container] = spec["containers"]
            words = [*container["command"], *container.get("args", ())]
            places = [word for option, word in pairwise(words) if option in ("--amqp", "--http")]
            assert places
            assert all(ListenEndpoint.parse(each).host == ANY_IPV6 for each in places)

    def test_hub_accepts_its_configuration(self, tmp_path: Path) -> None:
        values = merged(SMALLEST, {"hub": {"certificateDays": 30, "tenantQuota": {"waitingBytes": 134_217_728}}})
        text = only(render(values, tmp_path), "ConfigMap")["data"]["hub.yaml"]
        settings = parse(text.encode(), "hub.yaml")
        assert settings.lake == "s3://fleet/lake"
        assert settings.names == ("hub.example",)
        assert settings.applications is False
        assert settings.certificate_days == 30
        assert settings.tenant_quota.waiting_bytes == 134_217_728
        assert settings.authority_files == (Path("/etc/waypost/authority/ca.crt"), None)

    @pytest.mark.parametrize("values", [SMALLEST, EVERYTHING], ids=["smallest", "everything"])
    def test_one_pod_has_the_key_of_the_authority(self, values: dict[str, Any], tmp_path: Path) -> None:
        resources = render(values, tmp_path)
        own = only(resources, "Deployment", of_authority=True)
        spec = own["spec"]["template"]["spec"]
        assert "waypost-authority" in set(volumes_of(spec))
        others = [each for each in pod_specs(resources) if each != spec]
        assert others
        assert not any("waypost-authority" in set(volumes_of(each)) for each in others)
        policy = only(resources, "NetworkPolicy", of_authority=True)["spec"]
        assert policy["podSelector"]["matchLabels"].items() <= own["spec"]["template"]["metadata"]["labels"].items()
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert "ingress" not in policy, "nothing may connect"
        hubs = only(resources, "NetworkPolicy")["spec"]["podSelector"]
        assert hubs["matchExpressions"][0]["values"] == ["authority"], "no other policy allows it"

    def test_authority_accepts_its_configuration(self, tmp_path: Path) -> None:
        more = {"certificateDays": 30, "tenantQuota": {"gateways": 7}}
        resources = render(merged(SMALLEST, {"hub": more}), tmp_path)
        text = only(resources, "ConfigMap", of_authority=True)["data"]["authority.yaml"]
        settings, hubs = (
            parse(each.encode(), "hub.yaml") for each in (text, only(resources, "ConfigMap")["data"]["hub.yaml"])
        )
        folder = Path("/etc/waypost/authority")
        assert settings.authority_files == (folder / "tls.crt", folder / "tls.key")
        assert (settings.names, settings.registry) == (hubs.names, hubs.registry)
        assert settings.certificate_days == 30
        spec = only(resources, "Deployment", of_authority=True)["spec"]["template"]["spec"]
        program, *words, _, config, _, _ = spec["containers"][0]["command"]
        assert (program, words) == ("waypost", ["hub", authority.name])
        mounts = {each["name"]: each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
        assert config == f"{mounts['configuration']}/authority.yaml"
        assert mounts["authority"] == str(folder)

    def test_authority_has_the_environment_of_the_hubs(self, tmp_path: Path) -> None:
        more = {"env": [{"name": "PGSSLMODE", "value": "verify-full"}]}
        resources = render(merged(SMALLEST, more), tmp_path)
        for of_authority in (True, False):
            pod = only(resources, "Deployment", of_authority=of_authority)["spec"]["template"]["spec"]
            assert more["env"][0] in pod["containers"][0]["env"]

    def test_authority_reaches_the_port_of_its_registry(self, tmp_path: Path) -> None:
        values = merged(SMALLEST, {"registry": {"url": "postgresql://waypost@postgres:7777/waypost"}})
        *_, rule = only(render(values, tmp_path), "NetworkPolicy", of_authority=True)["spec"]["egress"]
        assert [each["port"] for each in rule["ports"]] == [5432, 6432, 7777]

    def test_registry_is_migrated_before_an_update(self, tmp_path: Path) -> None:
        resources = render(SMALLEST, tmp_path)
        job = only(resources, "Job")
        assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
        container = job["spec"]["template"]["spec"]["containers"][0]
        given = {each["name"]: each.get("value") for each in container["env"]}
        assert given["CONFIGURATION"].strip() == only(resources, "ConfigMap")["data"]["hub.yaml"].strip()
        assert "PGPASSWORD" in given

    def test_pod_is_given_time_to_leave(self, tmp_path: Path) -> None:
        values = merged(SMALLEST, {"drain": {"endpointSeconds": 7, "seconds": 45}})
        resources = render(values, tmp_path)
        spec = only(resources, "Deployment")["spec"]["template"]["spec"]
        assert parse(only(resources, "ConfigMap")["data"]["hub.yaml"].encode(), "hub.yaml").drain_seconds == 45
        assert spec["terminationGracePeriodSeconds"] == 7 + 45 + 30
        assert spec["containers"][0]["lifecycle"]["preStop"] == {"sleep": {"seconds": 7}}

    def test_issuer_accepts_every_host_of_the_console(self, tmp_path: Path) -> None:
        hosts = {"ingress": {"host": "console.example"}, "httpRoute": {"host": "route.example"}}
        realm = only(render(merged(EVERYTHING, {"console": hosts}), tmp_path), "KeycloakRealmImport")["spec"]["realm"]
        [client] = realm["clients"]
        names = ("hub.example", "console.example", "route.example")
        assert client["redirectUris"] == [f"https://{name}{CALLBACK}" for name in names]
        pages = client["attributes"]["post.logout.redirect.uris"]
        assert pages.split("##") == [f"https://{name}/" for name in names]
        off = merged(EVERYTHING, {"console": {"ingress": {"enabled": False, "host": "console.example"}}})
        [client] = only(render(off, tmp_path), "KeycloakRealmImport")["spec"]["realm"]["clients"]
        assert client["redirectUris"] == [f"https://hub.example{CALLBACK}"]

    @pytest.mark.parametrize(
        ("more", "ports"),
        [
            ({}, [5432, 6432, 443, 9000, 587, 465]),
            ({"receiverPorts": [443, 8443]}, [5432, 6432, 443, 9000, 8443]),
            ({"receiverPorts": []}, [5432, 6432, 443, 9000]),
            ({"egress": [{"ports": [{"port": 5432, "protocol": "TCP"}]}]}, [5432]),
        ],
        ids=str,
    )
    def test_notifications_get_out(self, more: dict[str, Any], ports: list[int], tmp_path: Path) -> None:
        _, rule = only(render(merged(SMALLEST, {"networkPolicy": more}), tmp_path), "NetworkPolicy")["spec"]["egress"]
        assert [each["port"] for each in rule["ports"]] == ports

    def test_hubs_reach_the_ports_of_their_values(self, tmp_path: Path) -> None:
        more = {
            "registry": {"url": "postgresql://waypost@[fd00::1]:7777/waypost?sslmode=require"},
            "lake": {"endpoint": "https://store.data:9443"},
            "hub": {"oidc": {"issuer": "https://login.example:8443/realms/a", "audience": "waypost"}},
            "prove": {"pushgateway": "http://pushgateway.monitoring"},
            "messaging": {"url": "amqps://broker/", "failover": ["amqp://[fd00::2]"]},
            "networkPolicy": {"receiverPorts": []},
        }
        _, rule = only(render(merged(SMALLEST, more), tmp_path), "NetworkPolicy")["spec"]["egress"]
        reached = [each["port"] for each in rule["ports"]]
        assert reached == [5432, 6432, 443, 9000, 7777, 9443, 8443, 80, 5671, 5672]

    def test_number_of_hubs_is_that_of_the_autoscaler(self, tmp_path: Path) -> None:
        """Without a cluster to look at, as in Argo CD; with one: `tests/fault/test_chart_under_controllers.py`."""
        scaled = {"autoscaling": {"enabled": True}}
        assert only(render(merged(SMALLEST, {"replicas": 5}), tmp_path), "Deployment")["spec"]["replicas"] == 5
        deployment = only(render(merged(SMALLEST, scaled), tmp_path), "Deployment")
        assert "replicas" not in deployment["spec"]
        assert "annotations" not in deployment["metadata"]

    def test_browser_stays_at_one_replica(self, tmp_path: Path) -> None:
        cookie = {"type": "Cookie", "sessionName": "waypost-hub"}
        more = {"console": {"httpRoute": {"sessionPersistence": cookie}}, "service": {"sessionAffinity": "ClientIP"}}
        resources = render(merged(EVERYTHING, more), tmp_path)
        [rule] = only(resources, "HTTPRoute")["spec"]["rules"]
        assert rule["sessionPersistence"] == cookie
        annotations = only(resources, "Ingress")["metadata"]["annotations"]
        assert annotations["nginx.ingress.kubernetes.io/affinity"] == "cookie"
        services = [each["spec"] for each in resources if each["kind"] == "Service"]
        assert [each["sessionAffinity"] for each in services] == ["ClientIP", "ClientIP"]

    def test_pods_restart_with_a_changed_configuration(self, tmp_path: Path) -> None:
        def checksum(values: dict[str, Any]) -> str:
            template = only(render(values, tmp_path), "Deployment")["spec"]["template"]
            return str(template["metadata"]["annotations"]["checksum/configuration"])

        assert checksum(SMALLEST) == checksum(SMALLEST)
        assert checksum(SMALLEST) != checksum(merged(SMALLEST, {"names": ["other.example"]}))

    def test_registry_of_the_operator_is_used(self, tmp_path: Path) -> None:
        resources = render(EVERYTHING, tmp_path)
        [text] = [each["data"]["hub.yaml"] for each in resources if "hub.yaml" in each.get("data", {})]
        settings = parse(text.encode(), "hub.yaml")
        assert settings.registry is not None
        assert settings.registry.host == f"{only(resources, 'Cluster')['metadata']['name']}-rw"
        container = only(resources, "Deployment")["spec"]["template"]["spec"]["containers"][0]
        [password] = [each for each in container["env"] if each["name"] == "PGPASSWORD"]
        assert password["valueFrom"]["secretKeyRef"] == {"name": "fleet-registry-app", "key": "password"}

    def test_hubs_reach_the_topic_of_the_operator(self, tmp_path: Path) -> None:
        resources = render(EVERYTHING, tmp_path)
        [text] = [each["data"]["hub.yaml"] for each in resources if "hub.yaml" in each.get("data", {})]
        kafka = parse(text.encode(), "hub.yaml").kafka
        topic, user = only(resources, "KafkaTopic"), only(resources, "KafkaUser")
        assert kafka is not None
        assert topic["spec"]["topicName"] == kafka.topic
        assert user["metadata"]["name"] == kafka.user
        assert kafka.mechanism.value.lower() == user["spec"]["authentication"]["type"]
        acls = {each["resource"]["name"] for each in user["spec"]["authorization"]["acls"]}
        assert acls == {kafka.topic, f"{CLIENT_ID}."}
        pod = only(resources, "Deployment")["spec"]["template"]["spec"]
        [volume] = [each for each in pod["volumes"] if each["name"] == "kafka"]
        secrets = [each["secret"] for each in volume["projected"]["sources"]]
        assert [each["name"] for each in secrets] == ["plant-cluster-ca-cert", kafka.user]
        [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "kafka"]
        files = {f"{mount['mountPath']}/{item['path']}" for each in secrets for item in each["items"]}
        assert kafka.tls is not None
        assert files == {kafka.tls.ca, kafka.password_file}
        ports = only(resources, "NetworkPolicy")["spec"]["egress"][-1]["ports"]
        assert {"port": 9093, "protocol": "TCP"} in ports

    def test_password_is_that_of_the_named_user(self, tmp_path: Path) -> None:
        resources = render(merged(EVERYTHING, {"kafka": {"user": "plant-hubs"}}), tmp_path)
        user = only(resources, "KafkaUser")["metadata"]["name"]
        assert user == "plant-hubs"
        assert user in set(volumes_of(only(resources, "Deployment")["spec"]["template"]["spec"]))

    def test_hubs_reach_the_message_broker(self, tmp_path: Path) -> None:
        addresses = {"tenants": ["a", "b"], "copies": "{tenant}.copies"}
        more = {"messaging": {"failover": ["amqps://other", "amqps://third:7000"], "addresses": addresses}}
        resources = render(merged(EVERYTHING, more), tmp_path)
        [text] = [each["data"]["hub.yaml"] for each in resources if "hub.yaml" in each.get("data", {})]
        broker = parse(text.encode(), "hub.yaml").messaging
        assert broker is not None
        assert [str(each) for each in broker.endpoints] == [
            "amqps://artemis:5671", "amqps://other:5671", "amqps://third:7000",
        ]  # fmt: skip
        assert (broker.tenants, broker.copies, broker.user) == (("a", "b"), "{tenant}.copies", "waypost")
        pod = only(resources, "Deployment")["spec"]["template"]["spec"]
        [volume] = [each for each in pod["volumes"] if each["name"] == "messaging"]
        secrets = [each["secret"] for each in volume["projected"]["sources"]]
        assert [each["name"] for each in secrets] == ["artemis-ca", "artemis-user"]
        [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "messaging"]
        files = {f"{mount['mountPath']}/{item['path']}" for each in secrets for item in each["items"]}
        assert broker.tls is not None
        assert files == {broker.tls.ca, broker.password_file}
        ports = [each["port"] for each in only(resources, "NetworkPolicy")["spec"]["egress"][-1]["ports"]]
        assert {5671, 7000} <= set(ports)

    def test_rabbitmq_has_the_queues_that_hubs_use(self, tmp_path: Path) -> None:
        messaging = {**RABBITMQ, "addresses": {"tenants": ["acme", "a-b", "default"]}}
        resources = render(merged(SMALLEST, {"messaging": messaging}), tmp_path)
        broker = parse(only(resources, "ConfigMap")["data"]["hub.yaml"].encode(), "hub.yaml").messaging
        assert broker is not None
        cluster = only(resources, "RabbitmqCluster")
        host = f"{cluster['metadata']['name']}.default.svc"
        assert (broker.url.host, broker.url.port, broker.url.tls, broker.user) == (host, 5671, True, "waypost")
        assert cluster["spec"]["tls"] == {"secretName": "messages-tls", "disableNonTLSListeners": True}
        queues = {each["spec"]["name"]: each["spec"] for each in resources if each["kind"] == "Queue"}
        assert {(each["type"], each["durable"]) for each in queues.values()} == {("quorum", True)}
        policies = {each["spec"]["name"]: each["spec"] for each in resources if each["kind"] == "Policy"}
        assert policies["waypost-dead"]["definition"]["max-length"] == 100_000
        policy, rights = policies["waypost"], only(resources, "Permission")["spec"]["permissions"]
        assert policy["definition"]["dead-letter-routing-key"] in queues
        for tenant in broker.tenants:
            addresses = [broker.commands, broker.outcomes, f"{broker.replies}app"]
            commands, *others = [address_of(each, tenant).removeprefix("/queues/") for each in addresses]
            assert {commands, *others} <= queues.keys()
            assert all(re.search(policy["pattern"], each) for each in (commands, *others))
            assert re.search(rights["read"], commands)
            assert not re.search(rights["write"], commands)
            assert all(re.search(rights["write"], each) and not re.search(rights["read"], each) for each in others)
        assert not re.search(policy["pattern"], policy["definition"]["dead-letter-routing-key"]), "it keeps what it has"
        names = [each["metadata"]["name"] for each in resources if each["kind"] == "Queue"]
        assert len(set(names)) == len(queues) == 10
        assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,251}[a-z0-9])?", each) for each in names)
        ports = [each["port"] for each in only(resources, "NetworkPolicy")["spec"]["egress"][-1]["ports"]]
        assert 5671 in ports
        user = only(resources, "User")["spec"]["importCredentialsSecret"]["name"]
        assert user in set(volumes_of(only(resources, "Deployment")["spec"]["template"]["spec"]))

    @pytest.mark.parametrize(
        ("served", "wanted"),
        [((), "v1"), (("v1",), "v1"), (("v1", "v1beta2"), "v1"), (("v1beta2",), "v1beta2")],
    )
    def test_topic_is_of_a_version_that_the_cluster_serves(
        self, served: tuple[str, ...], wanted: str, tmp_path: Path
    ) -> None:
        options = [f"--api-versions=kafka.strimzi.io/{each}" for each in served]
        resources = render(EVERYTHING, tmp_path, *options)
        for kind in ("KafkaTopic", "KafkaUser"):
            assert only(resources, kind)["apiVersion"] == f"kafka.strimzi.io/{wanted}"

    def test_brokers_without_tls_need_no_secret(self, tmp_path: Path) -> None:
        resources = render(merged(SMALLEST, {"kafka": {"brokers": ["kafka:9092"]}}), tmp_path)
        kafka = parse(only(resources, "ConfigMap")["data"]["hub.yaml"].encode(), "hub.yaml").kafka
        assert kafka is not None
        assert (str(kafka.brokers[0]), kafka.tls, kafka.user) == ("kafka:9092", None, None)
        volumes = only(resources, "Deployment")["spec"]["template"]["spec"]["volumes"]
        assert "kafka" not in [each["name"] for each in volumes]

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"messaging": {"url": "amqps://b", "user": "u"}}, "messaging.existingSecret is missing"),
            ({"messaging": {**RABBITMQ, "url": "amqps://b"}}, "leave one of them out"),
            ({"messaging": {**RABBITMQ, "existingSecret": ""}}, "messaging.existingSecret is missing"),
            ({"messaging": {**RABBITMQ, "addresses": {"commands": "c"}}}, "the chart names the queues"),
            ({"messaging": {"existingSecret": "u", "rabbitmq": {"enabled": True}}}, "messaging.rabbitmq.tlsSecret"),
            ({"kafka": {"brokers": ["k:1"], "user": "u"}}, "kafka.caSecret is missing"),
            ({"kafka": {"brokers": ["k:1"], "user": "u", "caSecret": "c"}}, "kafka.existingSecret is missing"),
            ({"kafka": {"strimzi": {"enabled": True}}}, "kafka.brokers is missing"),
            ({"kafka": {"brokers": ["k:1"], "caSecret": "c", "strimzi": {"enabled": True}}}, "kafka.strimzi.cluster"),
            ({"registry": {"url": ""}}, "registry.url is missing"),
            ({"monitoring": {"serviceMonitor": {"enabled": True}}}, "needs oauth2 or basicAuth"),
            ({"console": {"ingress": {"enabled": True}}}, "console.ingress.host is missing"),
            ({"console": {"httpRoute": {"enabled": True, "host": "a.example"}}}, "parentRefs is missing"),
            ({"maintain": {"enabled": True}, "analytics": {"enabled": True}}, "turn one off"),
        ],
    )
    def test_missing_value_is_named(self, more: dict[str, Any], said: str, tmp_path: Path) -> None:
        done = run_helm("template", "fleet", str(CHART), values=merged(SMALLEST, more), folder=tmp_path)
        assert done.returncode != 0
        assert said in done.stderr

    def test_rules_and_dashboards_are_the_files(self, tmp_path: Path) -> None:
        resources = render(EVERYTHING, tmp_path)
        rules = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
        assert only(resources, "PrometheusRule")["spec"] == rules
        boards = [each for each in resources if each["kind"] == "ConfigMap" and "dashboard" in each["metadata"]["name"]]
        texts = {text for each in boards for text in each["data"].values()}
        assert texts == {path.read_text() for path in DASHBOARDS}
