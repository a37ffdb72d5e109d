"""Writing: rows as segments of a data directory (bulk load), or as records to a broker."""
