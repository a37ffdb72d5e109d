"""Partitions and replication; knows no socket and no ZooKeeper."""
