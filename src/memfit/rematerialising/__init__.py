"""`memfit.remat`: where to cut a model, and the cuts applied."""
