"""Route commands from the queues of devices to subscribed devices and gateways.

A subscription for one device has priority over one for all devices of a gateway. Of several subscriptions for a device
the last one gets the commands, as in Hono. Without a subscription commands wait in their queue until they expire.
"""

from __future__ import annotations

from collections.abc import Iterable

from edge.broker.delivery.pattern import Joinable
from edge.broker.hono.addresses import HonoAddresses
from edge.broker.hono.tenant import DevicePrincipal
from edge.broker.model.interfaces import Consumer, SubscribeOptions
from edge.broker.router.router import Router

_OPTIONS = SubscribeOptions()


class CommandSubscription:
    """Subscription to the commands of one device, or of all devices of a gateway, until `end`."""

    def __init__(
        self, router: CommandRouter, consumer: Consumer, device: str | None, gateway: DevicePrincipal | None
    ) -> None:
        self.consumer = consumer
        self.device = device
        self.gateway = gateway
        self.joined: dict[str, Joinable] = {}
        """Joined queues by address or filter."""
        self._router = router

    def covers(self, device: str) -> bool:
        """Return True for a subscription of a gateway that acts for this device."""
        return self.device is None and self.gateway is not None and self.gateway.may_act_for(device)

    def pump(self) -> None:
        """Deliver waiting commands."""
        for joined in list(self.joined.values()):
            joined.pump()

    @property
    def idle_now(self) -> bool:
        """True while no further command is waiting."""
        return all(joined.idle_now for joined in self.joined.values())

    def end(self) -> None:
        """End the subscription; unsettled commands go to the next one. Idempotent."""
        self._router.unsubscribe(self)


class CommandRouter:
    """All subscriptions to commands of one tenant."""

    def __init__(self, router: Router, addresses: HonoAddresses) -> None:
        self._router = router
        self._addresses = addresses
        self._by_device: dict[str, list[CommandSubscription]] = {}
        """Subscriptions by device; the last one gets the commands."""
        self._of_gateways: dict[CommandSubscription, None] = {}

    def subscribe(self, consumer: Consumer, device: str) -> CommandSubscription:
        """Give `consumer` the commands of one device. Raises AddressError."""
        subscription = CommandSubscription(self, consumer, device, None)
        others = self._by_device.get(device, [])
        if others:
            self._leave(others[-1])
        try:
            self._join(subscription, self._addresses.queue(device))
        except BaseException:
            if others:
                self._join(others[-1], self._addresses.queue(device))
            raise
        self._by_device.setdefault(device, []).append(subscription)
        queue = self._router.queues.get(self._addresses.queue(device))
        for general in self._of_gateways:
            if queue is not None and general.covers(device):
                queue.leave(general.consumer, keep=False)
        return subscription

    def subscribe_gateway(self, consumer: Consumer, gateway: DevicePrincipal) -> CommandSubscription:
        """Give a gateway the commands of all its devices without a subscription of their own. Raises AddressError."""
        subscription = CommandSubscription(self, consumer, None, gateway)
        if gateway.all_devices:
            self._join(subscription, self._addresses.commands)
        else:
            for device in sorted((gateway.device, *gateway.acts_for)):
                self._join(subscription, self._addresses.queue(device))
        for device in self._by_device:
            queue = self._router.queues.get(self._addresses.queue(device))
            if queue is not None and subscription.covers(device):
                queue.leave(consumer, keep=False)
        self._of_gateways[subscription] = None
        return subscription

    def unsubscribe(self, subscription: CommandSubscription) -> None:
        """See `CommandSubscription.end`."""
        device = subscription.device
        if device is None:
            self._of_gateways.pop(subscription, None)
            self._leave(subscription)
            return
        others = self._by_device.get(device, [])
        if subscription not in others:
            return
        was_last = others[-1] is subscription
        others.remove(subscription)
        self._leave(subscription)
        if not others:
            del self._by_device[device]
            self._return(device, [general for general in self._of_gateways if general.covers(device)])
        elif was_last:
            self._join(others[-1], self._addresses.queue(device))
            others[-1].pump()

    def _return(self, device: str, gateways: Iterable[CommandSubscription]) -> None:
        """Give the commands of a device back to its gateways after its own subscription has ended."""
        queue = self._router.queues.get(self._addresses.queue(device))
        if queue is None:
            return
        for general in gateways:
            queue.join(general.consumer)
        queue.pump()

    def _join(self, subscription: CommandSubscription, address: str) -> None:
        subscription.joined[address] = self._router.subscriptions.subscribe(subscription.consumer, address, _OPTIONS)

    def _leave(self, subscription: CommandSubscription) -> None:
        joined, subscription.joined = subscription.joined, {}
        for each in joined.values():
            self._router.subscriptions.unsubscribe(subscription.consumer, each, forget=False)
