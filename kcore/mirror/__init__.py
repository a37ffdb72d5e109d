"""A topic of a running cluster, copied into a data directory."""
