"""The group coordinator: membership, rebalances, committed offsets."""
