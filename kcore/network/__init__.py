"""Bytes in, bytes and file slices out."""
