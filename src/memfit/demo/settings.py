"""The demo's defaults, alone in a file so that the command line can show them without loading anything."""

BUDGET = "128MiB"
IMAGES = 256
BATCH_SIZE = 64
EPOCHS = 4
