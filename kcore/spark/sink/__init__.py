"""Writing: rows become segments of a directory (bulk load), or records that a broker gets."""
