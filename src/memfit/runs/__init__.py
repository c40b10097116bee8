"""model + data + Plan -> Run: training that an out-of-memory error costs nothing but time."""
