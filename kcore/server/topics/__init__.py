"""Topics: creation, deletion, settings and partitions, for a broker alone and in a cluster."""
