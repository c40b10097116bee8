"""Program -> peak: TensorFlow's executor and allocator simulated, no TensorFlow."""
