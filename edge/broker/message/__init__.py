"""Parts of a message in the encodings of AMQP and MQTT: properties, annotations, time to live, readings."""
