"""`waypost shadow`: mirror the traffic of a running MQTT broker, compare both, and move over (decision 0001)."""
