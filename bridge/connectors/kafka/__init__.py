"""Kafka clusters as peers, by aiokafka (the extra `kafka`)."""
