"""Records of TFRecord files: where they are, whether they are sound, what is in them, what becomes of it."""
