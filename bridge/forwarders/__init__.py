"""Forwarders over connectors to peers that are not a Waypost hub, and their AMQP implementation.

`outbox` and `inbox` are the contract: a connector takes from one outbox and gives to several inboxes.
"""
