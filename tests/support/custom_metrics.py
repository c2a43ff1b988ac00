"""Adapter of custom metrics for tests: an API that an API server aggregates, with values that a test sets.

Prometheus Adapter and KEDA serve the same API, `custom.metrics.k8s.io`. An autoscaler asks it for a metric of pods.
"""

from __future__ import annotations

import datetime
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.support.api_server import ApiServer

GROUP: Final = "custom.metrics.k8s.io"
VERSION: Final = "v1beta2"
NAMESPACE: Final = "monitoring"


class CustomMetrics:
    """Serves, and is registered, while it is entered."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.totals: Final[dict[str, float]] = {}
        """Sum of a metric over all pods; each ready one has the same share of it."""
        self.each: Final[dict[str, float]] = {}
        """Value of a metric of each ready pod."""
        metrics = self

        class Handler(BaseHTTPRequestHandler):
            """Answers the API server, which has authenticated the client."""

            def do_GET(self) -> None:
                """Answer a request."""
                content = metrics.answer(self.path)
                body = json.dumps(content or {"kind": "Status", "apiVersion": "v1", "code": 404}).encode()
                self.send_response(200 if content else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                """Log nothing."""

        issued = server.authority.issue("adapter")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(issued.certificate, issued.key)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, name="custom-metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        port = self._http.server_address[1]
        self._server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "adapter", "namespace": NAMESPACE}}
        registration = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{VERSION}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "version": VERSION,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {"namespace": NAMESPACE, "name": "adapter", "port": port},
            },
        }
        self._server.apply(
            {**service, "spec": {"type": "ExternalName", "externalName": "localhost"}}, namespace=NAMESPACE
        )
        self._server.apply(registration)
        waited = self._server.kubectl(
            "wait", "apiservice", f"{VERSION}.{GROUP}", "--for=condition=Available", "--timeout=60s"
        )
        assert waited.returncode == 0, waited.stderr
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kubectl("delete", "apiservice", f"{VERSION}.{GROUP}")
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, target: str) -> dict[str, Any] | None:
        """Return the document of a path of the API; None without one."""
        parts = urlsplit(target)
        words = [unquote(word) for word in parts.path.strip("/").split("/")]
        if words[:3] != ["apis", GROUP, VERSION]:
            return None
        if len(words) == 3:
            names = sorted({*self.totals, *self.each})
            found = [
                {"name": f"pods/{name}", "singularName": "", "namespaced": True, "kind": "MetricValueList",
                 "verbs": ["get"]}
                for name in names
            ]  # fmt: skip
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": f"{GROUP}/{VERSION}",
                "resources": found,
            }
        match words[3:]:
            case ["namespaces", namespace, "pods", "*", metric]:
                [selector] = parse_qs(parts.query).get("labelSelector", [""])
                return self._values(namespace, metric, selector)
        return None

    def _values(self, namespace: str, metric: str, selector: str) -> dict[str, Any] | None:
        pods = self._server.read(f"/api/v1/namespaces/{namespace}/pods?labelSelector={quote(selector)}")["items"]
        ready = [pod["metadata"]["name"] for pod in pods if is_ready(pod)]
        if metric in self.totals:
            value = self.totals[metric] / max(1, len(ready))
        elif metric in self.each:
            value = self.each[metric]
        else:
            return None
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        items = [
            {
                "describedObject": {"kind": "Pod", "namespace": namespace, "name": name, "apiVersion": "/v1"},
                "metric": {"name": metric},
                "timestamp": now,
                "value": f"{round(value * 1000)}m",
            }
            for name in ready
        ]
        return {"kind": "MetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": items}


def is_ready(pod: dict[str, Any]) -> bool:
    """Return whether a pod serves, and is not leaving."""
    conditions = pod.get("status", {}).get("conditions", ())
    serves = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return serves and "deletionTimestamp" not in pod["metadata"]
