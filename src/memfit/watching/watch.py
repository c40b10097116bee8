"""A watch as the user has it: a context manager and a Keras callback."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

import keras

from memfit.core.records import Leak, Reading
from memfit.watching.containers import Containers
from memfit.watching.events import Events, clock, harmless, hooks
from memfit.watching.leaks import find_leaks, is_suspicious
from memfit.watching.timeline import Timeline
from memfit.watching.user_lines import frames_from, users_frames


class Watch(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Follows memory inside a `with` block, or through a `fit`, `evaluate` or `predict` as a callback."""

    def __init__(self) -> None:
        super().__init__()
        self._watching = Watcher()

    @property
    def timeline(self) -> tuple[Reading, ...]:
        """The readings of the watch, in order of time."""
        return self._watching.timeline

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """The leaks found so far; all of them once the watch is over."""
        return self._watching.leaks

    @property
    def is_on(self) -> bool:
        """Whether memory is being followed now."""
        return bool(self._watching.reason)

    def step(self) -> None:
        """Mark a step of a loop of your own; it costs next to nothing."""
        self._watching.step(sys._getframe(1))

    def __enter__(self) -> Self:
        self._watching.begin("block", sys._getframe(1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.end("block", sys._getframe(1))

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """`fit` begins."""
        self._watching.begin("fit", sys._getframe(1))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """`fit` ends."""
        self._watching.end("fit", sys._getframe(1))

    def on_test_begin(self, *_: Any, **__: Any) -> None:
        """`evaluate` begins, or the validation of `fit`."""
        self._watching.begin("evaluate", sys._getframe(1))

    def on_test_end(self, *_: Any, **__: Any) -> None:
        """`evaluate` ends."""
        self._watching.end("evaluate", sys._getframe(1))

    def on_predict_begin(self, *_: Any, **__: Any) -> None:
        """`predict` begins."""
        self._watching.begin("predict", sys._getframe(1))

    def on_predict_end(self, *_: Any, **__: Any) -> None:
        """`predict` ends."""
        self._watching.end("predict", sys._getframe(1))

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """A step of `fit`."""
        self._watching.step(sys._getframe(1))

    def on_predict_batch_end(self, *_: Any, **__: Any) -> None:
        """A step of `predict`."""
        self._watching.step(sys._getframe(1))

    def on_test_batch_end(self, *_: Any, **__: Any) -> None:
        """A step of `evaluate`; those of a validation are no steps of their own."""
        if self._watching.reason == "evaluate":
            self._watching.step(sys._getframe(1))


logger = logging.getLogger("memfit")

_JUDGE_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0  # before something is called a leak while it may still be a beginning
_COLLECTION_SHARE = 0.01


class Watcher:
    """Follows memory for as long as there is a reason to, and names what leaks."""

    def __init__(self) -> None:
        self._step = 0
        self._leaks: dict[tuple[str, str], Leak] = {}
        self._events = Events()
        self._containers = Containers()
        self._readings = Timeline(self._events, lambda: self._step)
        self._reasons: list[str] = []  # why it is on: the block, and the calls of Keras that are under way
        self._lock = threading.RLock()  # a look at a time, by the thread or by the one that is watched
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._watched = 0
        self._call = 0  # identity of the frame of Keras' that is under way
        self._collected = (0.0, 0.0)  # when garbage was collected, and how long it took

    @property
    def timeline(self) -> tuple[Reading, ...]:
        """The readings of the watch, in order of time."""
        return tuple(self._readings.readings)

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """The leaks found so far; all of them once the watch is over."""
        return tuple(self._leaks.values())

    def step(self, frame: FrameType) -> None:
        """Count a step that a frame has made; every now and then, look."""
        self._step += 1
        if self._reasons and self._step & (self._step - 1) == 0:  # powers of two
            self._look(frame)

    @property
    def reason(self) -> str:
        """The first reason of the watch; empty where it is over."""
        return self._reasons[0] if self._reasons else ""

    def begin(self, reason: str, frame: FrameType) -> None:
        """Follow memory for a reason; one that comes in addition changes nothing."""
        self._reasons.append(reason)
        if len(self._reasons) > 1:
            return
        self._watched = threading.get_ident()
        self._call = 0 if reason == "block" else _call_of_keras(frame)
        hooks.tell(self._events)
        self._look(frame)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stop,), daemon=True)
        self._thread.start()

    def end(self, reason: str, frame: FrameType | None) -> None:
        """A reason is over; with the last one, all is judged."""
        if reason in self._reasons:
            self._reasons.remove(reason)
        if self._reasons or self._thread is None:
            return
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None
        hooks.stop(self._events)
        with self._lock, harmless():
            is_collected = self._collect_garbage(in_any_case=reason == "block")
            self._look(frame, is_last=True)
            self._judge(0.0, is_collected=is_collected)

    def _run(self, stop: threading.Event) -> None:
        """Look from time to time, in a thread of its own, until it has to stop."""
        judged = time.perf_counter()
        while not stop.wait(self._readings.interval_seconds):
            frame = sys._current_frames().get(self._watched)
            if self._call and self._call not in map(id, frames_from(frame)):
                self._reasons.clear()  # an error has ended the call of Keras, without a callback
                self.end("", None)
                return
            began = time.thread_time()
            self._look(frame)
            self._readings.spent(time.thread_time() - began)
            now = time.perf_counter()
            if now - judged >= _JUDGE_SECONDS:
                judged = now
                self._judge_in_between()
            del frame  # or what it has would stay until the next look

    def _look(self, frame: FrameType | None, *, is_last: bool = False) -> None:
        with self._lock, harmless():
            self._readings.read(is_last=is_last)
            now = clock()
            self._containers.look(users_frames(frame), now)
            self._events.look(now)

    def _judge_in_between(self) -> None:
        """Judge while the program goes on, with garbage collected where that is worth its time."""
        with self._lock, harmless():
            is_collected = self._collect_garbage()
            self._judge(_PATIENCE_SECONDS, is_collected=is_collected)
            self._events.drop_the_dead()

    def _collect_garbage(self, *, in_any_case: bool = False) -> bool:
        """Collect it where it may show a leak and takes no more than a share of the time; says if it did."""
        began = time.perf_counter()
        collected, took = self._collected
        is_too_early = (began - collected) * _COLLECTION_SHARE < took
        if (is_too_early and not in_any_case) or not is_suspicious(self._events):
            return False
        gc.collect()
        now = time.perf_counter()
        self._collected = (now, now - began)
        return True

    def _judge(self, patience_seconds: float, *, is_collected: bool) -> None:
        found = find_leaks(
            self._events,
            self._containers,
            now=clock(),
            patience_seconds=patience_seconds,
            is_collected=is_collected,
        )
        for leak in found:
            key = (leak.leaked, leak.source)
            if key not in self._leaks:
                logger.warning("%s. %s Try: %s", leak.describe(), leak.advice, leak.paste)
            self._leaks[key] = leak


def _call_of_keras(frame: FrameType) -> int:
    """The identity of the frame of `fit`, `evaluate` or `predict` that calls a callback."""
    calls = [one for one in frames_from(frame) if one.f_code.co_name in ("fit", "evaluate", "predict")]
    return id(calls[0]) if calls else 0
