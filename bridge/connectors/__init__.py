"""Connectors to peers without AMQP: MQTT brokers, HTTP endpoints, Kafka clusters."""
