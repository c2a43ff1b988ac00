"""MQTT 3.1.1 brokers as peers: amqtt's packets under a client of our own (decision 0001)."""
