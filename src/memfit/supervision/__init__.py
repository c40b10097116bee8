"""script -> the same script, supervised: a parent limits, explains and restarts, a child resumes."""
