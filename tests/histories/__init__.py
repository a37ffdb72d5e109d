"""Histories of clients of a Kafka cluster, and what no correct cluster can have done."""
