"""Kafka's wire format, without I/O."""
