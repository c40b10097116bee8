"""`memfit.estimate`: the peak of a step before it runs."""
