"""Program -> Estimate: the executor and the allocator, simulated in plain Python."""
