"""Batches and records in memory."""
