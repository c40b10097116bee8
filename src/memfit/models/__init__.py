"""What a Keras model consists of: its calls, in an order of our own."""
