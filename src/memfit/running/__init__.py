"""`memfit run`: a script supervised by a parent process."""
