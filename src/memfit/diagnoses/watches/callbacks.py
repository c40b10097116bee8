"""A watch as the user has it: a context manager and a Keras callback."""

from __future__ import annotations

import sys
from typing import Any

import keras

from memfit.diagnoses.watches.watching import Watching


class Watch(Watching, keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Follows memory inside a `with` block, or through a `fit`, `evaluate` or `predict` as a callback."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """`fit` begins."""
        self._begin("fit", sys._getframe(1))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """`fit` ends."""
        self._end("fit", sys._getframe(1))

    def on_test_begin(self, *_: Any, **__: Any) -> None:
        """`evaluate` begins, or the validation of `fit`."""
        self._begin("evaluate", sys._getframe(1))

    def on_test_end(self, *_: Any, **__: Any) -> None:
        """`evaluate` ends."""
        self._end("evaluate", sys._getframe(1))

    def on_predict_begin(self, *_: Any, **__: Any) -> None:
        """`predict` begins."""
        self._begin("predict", sys._getframe(1))

    def on_predict_end(self, *_: Any, **__: Any) -> None:
        """`predict` ends."""
        self._end("predict", sys._getframe(1))

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """A step of `fit`."""
        self.step()

    def on_predict_batch_end(self, *_: Any, **__: Any) -> None:
        """A step of `predict`."""
        self.step()

    def on_test_batch_end(self, *_: Any, **__: Any) -> None:
        """A step of `evaluate`; those of a validation are no steps of their own."""
        if self._reasons[:1] == ["evaluate"]:
            self.step()
