"""Group coordination on its internal topic."""
