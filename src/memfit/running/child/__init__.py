"""The child of `memfit run`: the script, guarded."""
