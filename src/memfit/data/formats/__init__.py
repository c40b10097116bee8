"""`memfit.data.from_…`: one module for each format."""
