"""`memfit.data.pack`: data sets in a few large files."""
