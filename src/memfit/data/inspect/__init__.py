"""`memfit.data.check` and `memfit.data.explain`."""
