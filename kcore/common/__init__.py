"""What every layer may use; imports nothing else of kcore but kcore.errors."""
