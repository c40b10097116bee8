"""The errors, records, units and cache that all other folders build on; never loads TensorFlow."""
