"""Quotas of clients and of replication, and what measures them."""
