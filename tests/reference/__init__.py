"""Slow, obvious models of the formats and the log: the oracle of differential tests.  They import nothing of kcore."""
