"""memfit.errors: every error that memfit raises."""

from memfit.core import errors as _all
from memfit.core.errors import *
from memfit.core.errors import __all__ as __all__

__doc__ = _all.__doc__  # the tree of them
