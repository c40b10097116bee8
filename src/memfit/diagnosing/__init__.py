"""`memfit.diagnose`: why memory ran out."""
