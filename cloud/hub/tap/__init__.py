"""Tap of the lake: passes landed messages on to a Kafka topic, in the order of the commits, in a process of its own.

The process follows the log of the table `telemetry`, so the landing knows nothing of it, and waits for nothing of it.
"""
