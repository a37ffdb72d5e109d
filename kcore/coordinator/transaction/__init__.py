"""Transactions: so far the records of their log."""
