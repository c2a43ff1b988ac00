"""MQTT brokers as peers: our own client, with amqtt's packets for MQTT 3.1.1 (decision 0006)."""
