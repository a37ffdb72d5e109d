"""Copies between brokers: what a follower asks its leader over the network, and ISR changes in the store."""
