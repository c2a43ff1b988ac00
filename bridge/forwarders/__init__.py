"""Forwarders over connectors that are no hub of Waypost: what they are given, what they owe, and AMQP among them.

`outbox` and `inbox` are the contract; a connector takes from the one and gives to the others (see the bridge's README).
"""
