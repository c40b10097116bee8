"""live process -> Leak: what grows while a training runs, whose line makes it, and how it is let go."""
