"""What to do so that training fits: plain Python on plain data."""
