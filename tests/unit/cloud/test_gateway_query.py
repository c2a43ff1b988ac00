"""Query parameters of the list of gateways."""

from __future__ import annotations

import pytest

from cloud.hub.fleet_view import GatewayQuery
from cloud.hub.gateways_http import read_query
from cloud.hub.labels import parse_selector
from cloud.hub.registry.gateway_traits import GatewayTraits
from cloud.hub.version_rank import rank_version
from edge.broker.http.refusal import RequestRefused

NOW_US = 1_800_000_000_000_000


def test_parameters_that_are_empty_count_as_absent() -> None:
    names = ("q", "state", "selector", "sort", "connected", "version", "older_than", "problem", "severity")
    assert read_query(dict.fromkeys((*names, "seen_before", "seen_after"), ""), NOW_US) == GatewayQuery()


def test_every_parameter_is_read() -> None:
    query = {
        "q": "gw", "state": "danger", "selector": "site=lyon", "sort": "-name", "connected": "true", "version": "1.4.0",
        "older_than": "1.5.0", "problem": "store", "severity": "error", "seen_before": "7d",
        "seen_after": "1799999999999",
    }  # fmt: skip
    traits = GatewayTraits(
        "1.4.0", rank_version("1.5.0"), "store", "error", NOW_US - 7 * 86_400_000_000, 1_799_999_999_999_000
    )
    selector = parse_selector("site=lyon")
    assert read_query(query, NOW_US) == GatewayQuery("gw", "danger", selector, "name", True, True, traits)


def test_longest_age_begins_in_1970() -> None:
    assert read_query({"seen_before": "999999999d"}, NOW_US).traits.seen_before == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("connected", "yes"), ("older_than", "new"), ("severity", "fatal"), ("seen_before", "7 days"),
        ("seen_after", "-1"), ("seen_after", "9" * 16), ("seen_before", "\uff11d"), ("seen_before", "2026-11-30"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(name: str, value: str) -> None:
    with pytest.raises(RequestRefused, match=name):
        read_query({name: value}, NOW_US)
