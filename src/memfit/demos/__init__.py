"""The main job end to end: a model that plain Keras cannot train in the budget, and memfit can."""
