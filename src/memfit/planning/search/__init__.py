"""The search over levers on a Program: plain data, no TensorFlow."""
