"""Answers of a broker to processes that are no Kafka clients: its metrics, explanations, and whether it is ready."""
