"""Hono's topic names, filters and property bags."""

from __future__ import annotations

import pytest

from edge.broker.hono.errors import DeviceError
from edge.broker.hono.limits import BAG_FIELDS_MAX, CONTENT_TYPE_CHARACTERS_MAX, TTL_S_MAX
from edge.broker.hono.topics import (
    DeviceEndpoint,
    OnError,
    PropertyBag,
    Upload,
    read_bag,
    read_filter,
    read_upload,
    split_bag,
)


class TestUpload:
    """Topics that devices publish to."""

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("t", Upload(DeviceEndpoint.TELEMETRY, True)),
            ("telemetry", Upload(DeviceEndpoint.TELEMETRY, False)),
            ("e", Upload(DeviceEndpoint.EVENT, True)),
            ("event/T/4711", Upload(DeviceEndpoint.EVENT, False, "T", "4711")),
            ("t//4711", Upload(DeviceEndpoint.TELEMETRY, True, "", "4711")),
            ("c///s/id/200", Upload(DeviceEndpoint.RESPONSE, True, "", "", "id", 200)),
            ("command/T/4711/res/id/599", Upload(DeviceEndpoint.RESPONSE, False, "T", "4711", "id", 599)),
        ],
    )
    def test_topic_is_read(self, name: str, expected: Upload) -> None:
        assert read_upload(name) == expected

    @pytest.mark.parametrize("name", ["plant/7", "tt", "T", "error///x", "", "temp/t"])
    def test_other_topics_are_not_uploads(self, name: str) -> None:
        assert read_upload(name) is None

    @pytest.mark.parametrize(
        "name", ["t/", "t/T", "event/T/4711/more", "c", "c///q/id/on", "c///s/id/99", "c///s/id/600", "c///s/id/2e2"]
    )
    def test_malformed_topic_is_refused(self, name: str) -> None:
        with pytest.raises(DeviceError) as caught:
            read_upload(name)
        assert caught.value.status == 400


class TestBag:
    """Property bag at the end of a topic."""

    def test_bag_is_split_at_the_last_mark(self) -> None:
        assert split_bag("t/?a=b") == ("t", "a=b")
        assert split_bag("t//4711") == ("t//4711", "")
        assert split_bag("t/?x/?content-type=a") == ("t/?x", "content-type=a")

    def test_bag_is_read(self) -> None:
        text = "content-type=application%2Fjson&hono-ttl=30&on-error=skip-ack&correlation-id=7&else=ignored"
        assert read_bag(text) == PropertyBag("application/json", 30, OnError.SKIP_ACK, "7")
        assert read_bag("") == PropertyBag()

    @pytest.mark.parametrize(
        "text",
        [
            "hono-ttl=soon",
            "hono-ttl=-1",
            f"hono-ttl={TTL_S_MAX + 1}",
            "on-error=explode",
            "correlation-id=a%2Fb",
            "correlation-id=",
            "content-type=%FF",
            f"content-type={'x' * (CONTENT_TYPE_CHARACTERS_MAX + 1)}",
            "content-type=a%0D%0Ab",
            "&".join(f"k{i}=v" for i in range(BAG_FIELDS_MAX + 1)),
        ],
    )
    def test_invalid_bag_is_refused(self, text: str) -> None:
        with pytest.raises(DeviceError) as caught:
            read_bag(text)
        assert caught.value.status == 400

    def test_limits_are_inclusive(self) -> None:
        assert read_bag(f"hono-ttl={TTL_S_MAX}").ttl_s == TTL_S_MAX
        assert read_bag("&".join(f"k{i}=v" for i in range(BAG_FIELDS_MAX))) == PropertyBag()


class TestWish:
    """Filters that devices subscribe to."""

    @pytest.mark.parametrize(
        ("pattern", "device", "topic"),
        [
            ("c///q/#", "own", "c///q/rest"),
            ("command/T//req/#", "own", "command/T//req/rest"),
            ("c//own/q/#", "own", "c//own/q/rest"),
            ("c//+/q/#", "other", "c//other/q/rest"),
            ("c/T/+/q/#", "own", "c/T//q/rest"),
            ("error///#", "own", "error///rest"),
            ("e/T/+/#", "other", "e/T/other/rest"),
        ],
    )
    def test_topic_of_a_message_is_formed(self, pattern: str, device: str, topic: str) -> None:
        device_filter = read_filter(pattern)
        assert device_filter is not None
        assert device_filter.topic(device, "own", "rest") == topic

    @pytest.mark.parametrize(
        "pattern", ["#", "c/#", "c///s/#", "c/+/+/q/#", "c///q/x", "e", "e///+", "e/+//#", "plant/7/a/q/#", "error/#"]
    )
    def test_other_filters_are_not_command_subscriptions(self, pattern: str) -> None:
        assert read_filter(pattern) is None
