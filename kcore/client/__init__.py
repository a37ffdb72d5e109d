"""Calling other brokers."""
