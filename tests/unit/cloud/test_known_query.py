"""A client of a newer version at a hub of an older one: it does not take all rows for those that it wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.resources import files

import pytest

from bridge.applied_query import APPLIED_QUERY, ignored
from cloud.hub.known_query import read_parameters
from edge.output.errors import CommandError
from edge.remote.client import ConsoleClient

PAGE = b'{"gateways":[{"name":"hall"}],"next":null}'
Serve = Callable[[str], ConsoleClient]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve one page with a header field."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def start(field: str) -> ConsoleClient:
            def answer() -> None:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65_536)
                    head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(PAGE)}\r\n{field}\r\n"
                    connection.sendall(head.encode() + PAGE)

            threading.Thread(target=answer, daemon=True).start()
            return ConsoleClient(f"http://127.0.0.1:{server.getsockname()[1]}")

        yield start


def test_hub_without_the_filter_is_named(serve: Serve) -> None:
    filters = {"problem": "store", "older_than": "1.5.0", "selector": None}
    with pytest.raises(CommandError) as caught:
        list(serve("").pages("gateways", "gateways", filters))
    assert caught.value.error == "filter-ignored"
    assert "problem, older_than" in str(caught.value)


def test_hub_that_knows_one_of_two_filters_is_refused(serve: Serve) -> None:
    client = serve(f"{APPLIED_QUERY}: after, problem\r\n")
    with pytest.raises(CommandError) as caught:
        client.find("gateways", {"problem": "store", "older_than": "1.5.0"})
    assert (caught.value.error, "older_than" in str(caught.value)) == ("filter-ignored", True)


def test_answer_with_all_filters_is_taken(serve: Serve) -> None:
    client = serve(f"{APPLIED_QUERY}: limit, older_than, problem\r\n")
    found = list(client.pages("gateways", "gateways", {"problem": "store", "older_than": "1.5.0"}, sort=None))
    assert [each["name"] for each in found] == ["hall"]


def test_without_filters_any_hub_is_asked(serve: Serve) -> None:
    assert len(list(serve("").pages("gateways", "gateways", {"selector": None}, sort="name"))) == 1


def test_names_are_compared_whole() -> None:
    assert ignored("older_than_all, a", ["older_than", "a"]) == ["older_than"]


@pytest.mark.parametrize(
    "path", ["rollouts", "plans", "configurations", "configurations/{gateway}"], ids=lambda path: path.split("/")[-1]
)
def test_hub_knows_what_clients_send_with_a_configuration(path: str) -> None:
    known = read_parameters(files("cloud.console"))["POST", f"/api/v1/{path}"]
    assert {"tenant", "why", "confirm", "restart"} <= known.names
