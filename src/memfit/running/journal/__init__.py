"""The journal of a run, and the folder it is in."""
