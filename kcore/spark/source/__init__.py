"""Reading: from segments in a directory to record batches in Spark's tasks, in batches and in streams."""
