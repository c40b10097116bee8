"""`memfit.plan`: the fastest way to train within a budget."""
