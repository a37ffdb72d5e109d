"""The kcore command line."""
