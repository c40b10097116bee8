"""Whose code a file of a traceback is: the user's, or that of an installed package.

Here the places of packages are known. A log may come from another machine: there the path alone decides, by
the shape that the paths of installed packages have. The name of a folder is not enough, as users call their
projects `keras` or `memfit` too.
"""

from __future__ import annotations

import re

from memfit.core.user_code import is_library

_GENERATED = re.compile(r"<(?:frozen|string|__array_function__)")
_PACKAGES = r"(?:site|dist)-packages/"
_STANDARD_LIBRARY = (
    r"lib(?:64)?/(?:python|pypy)\d+\.\d+\w?/",
    r"python\d+\.zip/",
)
_WINDOWS_LIBRARY = re.compile(  # where the standard library is in a folder that is called Lib alone
    r"[a-z]:/(?:.*/)?lib/(?:(?:runpy|threading|contextlib|functools)\.py"
    r"|(?:importlib|multiprocessing|concurrent/futures|asyncio)/)",
    re.IGNORECASE,
)
_KERAS = (
    r"(?:tf_)?keras/src/(?:activations|applications|backend|callbacks|constraints|datasets|distribute"
    r"|distribution|dtensor|dtype_policies|engine|export|initializers|layers|legacy|losses|metrics"
    r"|mixed_precision|models|ops|optimizers|preprocessing|quantizers|random|regularizers|saving|testing"
    r"|trainers|tree|utils|visualization|wrappers)/"
)
_TENSORFLOW = (
    r"tensorflow(?:_core)?/python/(?:autograph|checkpoint|client|compat|compiler|data|debug|distribute|dlpack"
    r"|eager|estimator|feature_column|framework|grappler|keras|layers|lib|lite|module|ops|platform|profiler"
    r"|saved_model|summary|tf2xla|tools|tpu|trackable|training|types|user_ops|util)/"
)
_JAX = r"jax/_src/"
# Folders of memfit, of older versions too. Users have folders called `data` or `models` in projects of any
# name, so those need to be below `src`, as in a clone that was installed in place.
_MEMFIT = (
    r"memfit/(?:(?:api|__main__)\.py$"
    r"|(?:diagnos(?:ing|es)|linting|watching|estimat(?:ing|es)|guarding|levers|running|runs|supervision"
    r"|planning|plans|programs|rematerialising|private|machine|devices|errors"
    r"|data/(?:formats|inspect|packs|reading|records|stream|tfrecord))/)",
    r"src/memfit/(?:cli|commands|core|data|demos?|graph|models?|records|reports|search|shrink)/",
    r"src/memfit/(?:__init__|caches|devices|errors|estimating|foresight|garbage|records|rematerialise|rooms|roundtrips"
    r"|samples|sequences|sources|spans|units|version)\.py$",
)
_INSTALLED = re.compile(
    "|".join(
        rf"(?:^|/){shape}" for shape in (_PACKAGES, *_STANDARD_LIBRARY, _KERAS, _TENSORFLOW, _JAX, *_MEMFIT)
    )
)


def looks_installed(path: str) -> bool:
    """Whether a path, maybe of another machine, has the shape of those of installed packages."""
    path = path.replace("\\", "/")
    return any(
        (_GENERATED.match(path), _INSTALLED.search(path), _WINDOWS_LIBRARY.match(path)),
    )


def is_installed_here(path: str) -> bool:
    """Whether a file of this machine belongs to Python or to an installed package."""
    if path.startswith("<"):
        return _GENERATED.match(path) is not None
    return is_library(path)
