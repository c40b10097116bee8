"""Every private name of Keras and TensorFlow, one file for each use.

`tests/facts/` has a test for each file, which says what breaks if a name goes.
"""
