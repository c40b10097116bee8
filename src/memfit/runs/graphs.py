"""tf.functions that belong to one object."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def graph(function: Callable[..., Any], **options: Any) -> Any:
    """A tf.function of a method or closure.

    TensorFlow counts traces by source line and warns users of 'retracing' when several objects trace the
    same line once each; a partial has no source line.
    """
    return tf.function(functools.partial(function), autograph=False, **options)
