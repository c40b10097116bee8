"""Step -> Program: traced, read as plain data, nothing run."""
