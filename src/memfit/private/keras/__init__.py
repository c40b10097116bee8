"""Private names of Keras."""
