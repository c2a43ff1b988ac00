"""Connectors to peers that are no hub and speak no AMQP: MQTT brokers, HTTP endpoints, Kafka."""
