"""Private names of TensorFlow."""
