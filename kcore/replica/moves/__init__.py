"""Moves of logs between the data directories of one broker."""
