"""Bulk load: Arrow batches become segments beside the logs, and then part of the logs, all at once."""
