"""TFRecord files: frames, indices, schemas."""
