"""Files -> rows and images."""
