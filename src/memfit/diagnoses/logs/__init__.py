"""Logs of any size -> facts: what each message says, and on which line. Plain Python, never TensorFlow."""
