"""Facts -> the cause."""
