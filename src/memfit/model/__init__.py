"""A Keras model as data: its calls, specs, functions, and the calls of `fit` on it."""
