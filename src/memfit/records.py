"""memfit.records: plans, runs, estimates and all other records, which round-trip through JSON."""

from memfit.core.records import *
from memfit.core.records import __all__ as __all__
