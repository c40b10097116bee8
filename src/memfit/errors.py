"""Everything memfit raises.

MemfitError
├── InvalidSize (ValueError)            not a size: "8gigs", 0, -1
│   └── LargerThanMachine               a size beyond what the machine has
├── InvalidRecord (ValueError)          a JSON record that cannot be read
│   └── RecordTooNew                    ... because a newer memfit wrote it
├── TensorFlowMissing (ImportError)     TensorFlow or Keras is not installed
├── UnsupportedVersion                  TensorFlow or Keras is older than memfit supports
├── UnsupportedBackend                  Keras does not run on TensorFlow
├── RuntimeStarted (RuntimeError)       too late to set a limit
├── NotMeasurable (RuntimeError)        the allocator in force keeps no statistics
├── InvalidMicroBatchSize (ValueError)  not a number of samples
├── BatchSizesDiffer (ValueError)       arrays of one batch with different numbers of samples
├── CannotGuard                         training that memfit cannot guard exactly
├── InvalidBatchSize (ValueError)       not a number of samples
├── InvalidLever (ValueError)           not a lever that a plan can pull
├── UnusedArgument (ValueError)         something asked for that nothing would come of
├── WrongPlan (ValueError)              a plan for another model, other batches, other versions
├── CannotEstimate                      a step whose memory nobody can know beforehand
├── InvalidTarget (ValueError)          a TARGET that names nothing: no colon, no name
│   └── TargetNotFound                  ... that is there: no such file, module or name
├── WrongTarget (TypeError)             a TARGET that names something else than a model or data
├── TargetFailed                        the user's own code raised while it was loaded or traced
├── CannotLoadModel                     a .keras file that cannot be read, or not safely
├── CannotRematerialise                 a model that cannot be cut into segments
│   └── NothingToGain                   ... because it would need as much memory as before
├── InvalidPrecision (ValueError)       not a precision that memfit knows
├── LayerNotFound (ValueError)          a name that no layer of the model has
├── CannotLowerPrecision                a model that cannot compute in 16 bits
│   └── NotFinite                       ... because its numbers overflow in float32 too
├── DoesNotFit                          not even the smallest step fits
│   └── NothingFits                     ... of all that a plan may do
├── TornUpdate                          an update that could go neither forward nor back
├── ChildFailed                         a process that memfit started ended badly
├── ScriptNotFound                      a script to run that is not there
├── DamagedCheckpoint                   a checkpoint that is not what was written
├── CannotResume                        a run that cannot go on exactly where it was
├── RunNotFound                         a run that is asked for and was never there
└── CannotWrite (OSError)               output that cannot be written

Each states the fact with numbers, then what was expected and received, then a `Try:` line that can be
pasted. The numbers are attributes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class MemfitError(Exception):
    """What all errors of memfit have in common: a fact, details, and something to try."""

    exit_code = 1

    def __init__(self, fact: str, *details: str, suggestion: str) -> None:
        super().__init__("\n  ".join([fact, *details, f"Try: {suggestion}"]))

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries (pools pickle them), and their constructors take numbers.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[MemfitError], args: tuple[Any, ...], attributes: dict[str, Any]) -> MemfitError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class InvalidSize(MemfitError, ValueError):
    """Not a number of bytes, nor a size with a unit."""

    exit_code = 2

    def __init__(self, received: object, *, name: str, expected: str | None = None) -> None:
        self.received = received
        super().__init__(
            f"expected {expected or 'a number of bytes or a size with a unit'}.",
            f"Received: {_assignment(name, received)} ({type(received).__name__})",
            suggestion=_assignment(name, "8GiB"),
        )


def _assignment(name: str, value: object) -> str:
    if name.startswith("--"):
        return f"{name} {value}"
    return f'{name}="{value}"' if isinstance(value, str) else f"{name}={value!r}"


class LargerThanMachine(InvalidSize):
    """More memory than there is."""

    def __init__(self, received_bytes: int, *, name: str, total_bytes: int, where: str) -> None:
        self.received_bytes = received_bytes
        self.total_bytes = total_bytes
        largest = f"{max(1, int(total_bytes * 0.8) >> 20)}MiB"
        MemfitError.__init__(
            self,
            f"{name.lstrip('-')} of {received_bytes / 2**30:.1f} GiB is larger than {where}.",
            f"Expected: at most {total_bytes:,} bytes ({total_bytes / 2**30:.1f} GiB)",
            f"Received: {received_bytes:,} bytes",
            suggestion=_assignment(name, largest),
        )


class InvalidRecord(MemfitError, ValueError):
    """A JSON record that cannot be read."""

    def __init__(self, kind: str, problem: str) -> None:
        self.kind = kind
        super().__init__(
            f"cannot read a record of kind {kind!r}: {problem}.",
            suggestion="write the record again with the memfit that is installed here",
        )


class RecordTooNew(InvalidRecord):
    """A JSON record written by a newer memfit."""

    def __init__(self, kind: str, *, schema: int, newest: int) -> None:
        self.kind, self.schema, self.newest = kind, schema, newest
        MemfitError.__init__(
            self,
            f"the record of kind {kind!r} was written by a newer memfit.",
            f"Expected: schema {newest} or older",
            f"Received: schema {schema}",
            suggestion="pip install --upgrade memfit",
        )


class TensorFlowMissing(MemfitError, ImportError):
    """TensorFlow or Keras is not installed, or not so that it can be imported."""

    def __init__(self, package: str, reason: str | None = None) -> None:
        self.package = package
        super().__init__(
            f"{package} cannot be imported: {reason}."
            if reason
            else f"{package} is not installed in this Python.",
            "memfit leaves the choice of the build to you: on a GPU, memfit[gpu] instead.",
            suggestion="pip install 'memfit[cpu]'",
        )


class UnsupportedVersion(MemfitError):
    """TensorFlow or Keras is older than memfit supports."""

    def __init__(self, package: str, *, received: str, expected: str) -> None:
        self.package, self.received, self.expected = package, received, expected
        super().__init__(
            f"this version of {package} is not supported.",
            f"Expected: {package} {expected}",
            f"Received: {package} {received}",
            suggestion="pip install --upgrade 'memfit[cpu]'",
        )


class UnsupportedBackend(MemfitError):
    """Keras runs on a backend other than TensorFlow."""

    def __init__(self, received: str) -> None:
        self.received = received
        super().__init__(
            "memfit works with Keras on TensorFlow.",
            'Expected: keras.backend.backend() == "tensorflow"',
            f'Received: "{received}"',
            suggestion="KERAS_BACKEND=tensorflow python your_script.py",
        )


class RuntimeStarted(MemfitError, RuntimeError):
    """A limit can be set only before TensorFlow's runtime starts."""

    def __init__(self, requested_bytes: int | None, *, in_force_bytes: int | None) -> None:
        self.requested_bytes, self.in_force_bytes = requested_bytes, in_force_bytes
        size = "" if requested_bytes is None else f'"{requested_bytes >> 20}MiB"'
        super().__init__(
            "TensorFlow's runtime has already started, so its memory can no longer be limited.",
            "The first op, tensor, dataset or model with weights starts it; importing TensorFlow does not.",
            f"Limit in force: {_mebibytes(in_force_bytes)}; requested: {_mebibytes(requested_bytes)}",
            suggestion=f"memfit.limit({size or 'growth=True'})  # first of all, in a new process",
        )


def _mebibytes(size_bytes: int | None) -> str:
    return "none" if size_bytes is None else f"{size_bytes >> 20} MiB"


class NotMeasurable(MemfitError, RuntimeError):
    """The device's allocator keeps no statistics."""

    def __init__(self, device: str) -> None:
        self.device = device
        super().__init__(
            f"the allocator of {device} keeps no statistics, so current and peak are unknown.",
            "On a CPU they exist only under a limit.",
            suggestion='memfit.limit("8GiB")  # before the first op or model',
        )


class InvalidMicroBatchSize(MemfitError, ValueError):
    """Not a number of samples."""

    exit_code = 2

    def __init__(self, received: object) -> None:
        self.received = received
        super().__init__(
            "expected micro_batch_size to be a number of samples, 1 or more.",
            f"Received: micro_batch_size={received!r} ({type(received).__name__})",
            suggestion="micro_batch_size=8",
        )


class BatchSizesDiffer(MemfitError, ValueError):
    """Arrays of one batch with different numbers of samples."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        super().__init__(
            "the arrays of one batch have different numbers of samples.",
            "Expected: the same first dimension everywhere",
            f"Received: {', '.join(map(str, sizes))}",
            suggestion="print([array.shape for array in keras.tree.flatten(batch)])",
        )


class CannotGuard(MemfitError):
    """Training that cannot be guarded exactly; nothing has been changed."""

    def __init__(self, reason: str, *, suggestion: str) -> None:
        self.reason = reason
        super().__init__(f"memfit cannot guard this training: {reason}.", suggestion=suggestion)


class CannotRematerialise(MemfitError):
    """A model that cannot be cut into segments; it has not been changed."""

    def __init__(self, reason: str, *details: str, suggestion: str) -> None:
        self.reason = reason
        super().__init__(
            f"memfit cannot rematerialise this model: {reason}.", *details, suggestion=suggestion
        )


class CannotEstimate(MemfitError):
    """A step whose memory nobody can know beforehand; nothing has been changed."""

    def __init__(self, reason: str, *details: str, suggestion: str) -> None:
        self.reason = reason
        super().__init__(f"memfit cannot estimate this step: {reason}.", *details, suggestion=suggestion)


class InvalidBatchSize(MemfitError, ValueError):
    """Not a number of samples."""

    exit_code = 2

    def __init__(self, received: object, *, name: str = "batch_size") -> None:
        self.received = received
        on_command_line = name.startswith("--")
        super().__init__(
            f"{received!r} is not a batch size.",
            f"Expected a whole number of at least 1, received {received!r}.",
            suggestion=f"{name} 32" if on_command_line else "memfit.estimate(model, batch_size=32)",
        )


class InvalidLever(MemfitError, ValueError):
    """Not a lever that a plan can pull."""

    exit_code = 2

    def __init__(self, received: object, *, known: Sequence[str]) -> None:
        self.received = received
        super().__init__(
            f"{received!r} is not a lever.",
            f"Expected some of {', '.join(known)}, received {received!r}.",
            suggestion=f"allow={tuple(known)!r}",
        )


class UnusedArgument(MemfitError, ValueError):
    """Something that the user asks for, and that nothing would come of."""

    exit_code = 2

    def __init__(self, fact: str, expected: str, *, suggestion: str) -> None:
        super().__init__(fact, expected, suggestion=suggestion)


class WrongPlan(MemfitError, ValueError):
    """A plan for another model, for other batches, or made with other versions."""

    def __init__(self, what: str, *, expected: object, received: object, batch_size: int) -> None:
        self.expected, self.received = expected, received
        super().__init__(
            f"this plan was made for {what}; nothing was applied.",
            f"Expected {expected}, received {received}.",
            suggestion=f"plan = memfit.plan(model, batch_size={batch_size}, budget=...)",
        )


class InvalidTarget(MemfitError, ValueError):
    """Not of the form that names a model or data."""

    exit_code = 2

    def __init__(self, received: str, *, title: str, expected: str, suggestion: str) -> None:
        self.received = received
        super().__init__(
            f"expected {title} to be {expected}.", f"Received: {received}", suggestion=suggestion
        )


class TargetNotFound(InvalidTarget):
    """A file, a module or a name in it that does not exist."""

    def __init__(self, received: str, missing: str, *, near: Sequence[str], suggestion: str) -> None:
        self.received, self.near = received, tuple(near)
        MemfitError.__init__(
            self,
            f"{missing} does not exist.",
            f"Received: {received}",
            *([f"Names that are there: {', '.join(near)}"] if near else []),
            suggestion=suggestion,
        )


class WrongTarget(MemfitError, TypeError):
    """Something else than a model or data."""

    exit_code = 2

    def __init__(self, target: str, problem: str, *, expected: str, suggestion: str) -> None:
        self.target, self.problem = target, problem
        super().__init__(f"{target} {problem}.", f"Expected: {expected}", suggestion=suggestion)


class TargetFailed(MemfitError):
    """The user's own code raised while it was loaded or traced."""

    def __init__(self, target: str, doing: str, reason: str, *, where: str | None, suggestion: str) -> None:
        self.target, self.reason, self.where = target, reason, where
        super().__init__(
            f"{target} failed {doing}: {reason}.",
            *([] if where is None else [where]),
            suggestion=suggestion,
        )


class CannotLoadModel(MemfitError):
    """A .keras file that cannot be read, or not without running code from it."""

    def __init__(self, path: str, reason: str, *, suggestion: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"cannot load {path}: {reason}.", suggestion=suggestion)


class InvalidPrecision(MemfitError, ValueError):
    """Not a precision that memfit knows; nothing has been changed."""

    exit_code = 2

    def __init__(self, received: object, *, known: Sequence[str]) -> None:
        self.received = received
        super().__init__(
            f"{received!r} is not a precision to compute in.",
            f"Expected one of {', '.join(known)}, received {received!r}.",
            suggestion=f'"{known[0]}"',
        )


class LayerNotFound(MemfitError, ValueError):
    """A name that no layer of a model has; nothing has been changed."""

    exit_code = 2

    def __init__(self, received: str, *, near: Sequence[str], known: int) -> None:
        self.received, self.near = received, tuple(near)
        names = f'float32_layers=("{near[0]}",)' if near else "print([layer.name for layer in model.layers])"
        super().__init__(
            f"the model has no layer {received!r} among its {known}.",
            *([f"Names that are close: {', '.join(near)}"] if near else []),
            suggestion=names,
        )


class CannotLowerPrecision(MemfitError):
    """A model that cannot compute in 16 bits; it has not been changed."""

    def __init__(self, reason: str, *details: str, suggestion: str) -> None:
        self.reason = reason
        super().__init__(
            f"memfit cannot let this model compute in 16 bits: {reason}.", *details, suggestion=suggestion
        )


class NotFinite(CannotLowerPrecision):
    """Numbers that are not finite in float32 either; nothing has been changed."""

    def __init__(self, layer: str | None) -> None:
        self.layer = layer
        where = "the loss or a gradient" if layer is None else f"layer {layer}"
        super().__init__(
            "on this batch its numbers are not finite in float32 either",
            f"The first that are not come from {where}.",
            suggestion="a smaller learning rate, smaller numbers in the batch, or weights from before",
        )


class NothingToGain(CannotRematerialise):
    """Computing activations again would save next to nothing."""

    def __init__(self, plain_bytes: int, peak_bytes: int, *, batch_size: int, left_plain: str | None) -> None:
        self.plain_bytes, self.peak_bytes = plain_bytes, peak_bytes
        super().__init__(
            "computing activations again would save next to nothing",
            f"Activations and gradients, batch of {batch_size}: {plain_bytes:,} bytes as it is, "
            f"{peak_bytes:,} bytes at best.",
            *([] if left_plain is None else [left_plain]),
            suggestion="memfit.fit(model, ...), which splits batches instead",
        )


class DoesNotFit(MemfitError):
    """Not even the smallest step fits; the model is as it was before the step."""

    exit_code = 3

    def __init__(self, fact: str, *details: str, suggestion: str, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(fact, *details, suggestion=suggestion)


class NothingFits(DoesNotFit):
    """No plan that is allowed fits a budget; `.shortfall` is the record of what was found."""

    def __init__(self, fact: str, *details: str, suggestion: str, shortfall: Any) -> None:
        self.shortfall = shortfall
        super().__init__(fact, *details, suggestion=suggestion, limit_bytes=shortfall.budget_bytes)


class TornUpdate(MemfitError):
    """An update that ran out half-way, twice, and could go neither forward nor back."""

    def __init__(self, done: int, groups: int) -> None:
        self.done, self.groups = done, groups
        super().__init__(
            f"the update of the weights stopped half-way: {done} of {groups} groups of variables are done.",
            "Memory that was free before the update was taken by something else while it ran.",
            "The weights belong to two different steps.",
            suggestion="load the last checkpoint; a larger limit leaves room for the update",
        )


class ScriptNotFound(MemfitError):
    """A script that is not there."""

    exit_code = 2

    def __init__(self, script: str, *, folder: object) -> None:
        self.script, self.folder = script, folder
        is_path = "/" in script or script.endswith(".py")
        super().__init__(
            f"there is no script {script!r} in {folder}.",
            suggestion="the path of a script that is there" if is_path else f"memfit run -m {script}",
        )


class DamagedCheckpoint(MemfitError):
    """A checkpoint that was cut off, or that has changed since it was written."""

    def __init__(self, path: object, problem: str) -> None:
        self.path = path
        super().__init__(
            f"the checkpoint {path} is damaged: {problem}.",
            suggestion="the one before it",
        )


class CannotResume(MemfitError):
    """A script that, started again, is not at the point where it was."""

    def __init__(self, what: str, *, expected: str, received: str) -> None:
        self.expected, self.received = expected, received
        super().__init__(
            f"this run cannot be resumed: {what}.",
            f"Expected: {expected}",
            f"Received: {received}",
            suggestion="memfit run without --resume, to begin anew",
        )


class RunNotFound(MemfitError):
    """No such run is known."""

    exit_code = 2

    def __init__(self, what: str, *, folder: object, suggestion: str) -> None:
        self.folder = folder
        super().__init__(f"there is no run of {what} in {folder}.", suggestion=suggestion)


class ChildFailed(MemfitError):
    """A process that memfit started ended without a result."""

    def __init__(self, target: str, *, exit_code: int | None, last_lines: Sequence[str]) -> None:
        self.target, self.child_exit_code = target, exit_code
        super().__init__(
            f"the process that ran {target} {_ending(exit_code)}.",
            *(f"| {line}" for line in last_lines),
            suggestion="memfit doctor",
        )


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "raised an error"
    if exit_code < 0:
        return f"was ended by signal {-exit_code}"
    return f"ended with exit code {exit_code} and no result"


class CannotWrite(MemfitError, OSError):
    """Output that cannot be written; what was there before is untouched."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(
            f"cannot write {path}: {reason}.",
            "Nothing was written.",
            suggestion="a place that exists, has room, and that you may write to",
        )
