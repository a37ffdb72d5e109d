"""Where the layers meet: the broker."""
