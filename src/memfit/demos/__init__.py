"""The main job end to end: a model that plain Keras cannot train in the budget, and memfit can."""

from memfit.demos.mainjob import BATCH_SIZE, BUDGET_BYTES, EPOCHS, IMAGES, Progress, run_demo

__all__ = ["BATCH_SIZE", "BUDGET_BYTES", "EPOCHS", "IMAGES", "Progress", "run_demo"]
