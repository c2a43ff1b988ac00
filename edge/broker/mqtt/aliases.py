"""Topic aliases sent to one client (MQTT 5 section 3.3.2.3.4), given to the most used topics."""

from __future__ import annotations

from edge.broker.mqtt.limits import ALIASES_SENT_MAX, HEADS_CACHED_MAX


class TopicAliases:
    """Aliases set on one network connection; they end with it [MQTT-3.3.2-7].

    A topic gets an alias while there are free ones. After that a topic replaces the least used holder once it was used
    more often. So an alias does not change its topic with every message to a subscriber of many topics.
    """

    def __init__(self, maximum: int) -> None:
        """`maximum`: Topic Alias Maximum of the client, above 0; limited to `limits.ALIASES_SENT_MAX`."""
        self._maximum = min(maximum, ALIASES_SENT_MAX)
        self._aliases: dict[str, int] = {}
        self._uses: dict[str, int] = {}

    def find(self, topic: str, count: int) -> tuple[int, bool]:
        """Return the alias for `count` messages of a topic, or 0, and whether the alias is new to the client."""
        uses = self._uses
        uses[topic] = used = uses.get(topic, 0) + count
        alias = self._aliases.get(topic)
        if alias is not None:
            return alias, False
        if len(self._aliases) < self._maximum:
            alias = len(self._aliases) + 1
        else:
            least = min(self._aliases, key=uses.__getitem__)
            if uses[least] >= used:
                self._forget_rare()
                return 0, False
            alias = self._aliases.pop(least)
        self._aliases[topic] = alias
        return alias, True

    def _forget_rare(self) -> None:
        """Reset the counts of topics without an alias when there are too many of them."""
        if len(self._uses) > HEADS_CACHED_MAX:
            self._uses = {topic: self._uses[topic] for topic in self._aliases}
