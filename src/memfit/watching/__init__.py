"""`memfit.watch` and `memfit.release`."""
