"""Connector to ChirpStack's MQTT integration: events of LoRaWAN devices, and downlinks within their receive windows."""
