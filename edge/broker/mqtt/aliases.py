"""Topic aliases towards one client (MQTT 5 section 3.3.2.3.4): which topics have one, the most used ones in the end."""

from __future__ import annotations

from edge.broker.mqtt.limits import ALIASES_SENT_MAX, HEADS_CACHED_MAX


class TopicAliases:
    """Aliases we set on one network connection; they end with it [MQTT-3.3.2-7].

    A topic gets an alias while there are free ones; later, one that was used more often than the least used holder
    takes its place. So a subscriber to many topics does not see an alias move with every message.
    """

    def __init__(self, maximum: int) -> None:
        """`maximum`: Topic Alias Maximum of the client, above 0; `limits.ALIASES_SENT_MAX` holds as well."""
        self._maximum = min(maximum, ALIASES_SENT_MAX)
        self._aliases: dict[str, int] = {}
        self._uses: dict[str, int] = {}

    def find(self, topic: str, count: int) -> tuple[int, bool]:
        """Alias for `count` messages of a topic, or 0, and whether the client has to be told first."""
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
        """Count anew when there are too many topics without an alias; holders keep theirs."""
        if len(self._uses) > HEADS_CACHED_MAX:
            self._uses = {topic: self._uses[topic] for topic in self._aliases}
