"""Rows -> a `tf.data.Dataset` within a RAM budget."""
