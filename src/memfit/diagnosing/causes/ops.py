"""The causes that the op that failed, its shape and the code around it speak for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memfit.core.records import Evidence
from memfit.core.units import format_size
from memfit.diagnosing.causes.case import Case, Clue
from memfit.diagnosing.logs.facts import Failure

_CONSTANT = re.compile(r"(?:^|/)_?(?:EagerConst|Const(?:_\d+)?|HostConst)$|_EagerConst")
_WEIGHT_OP = re.compile(
    r"Initializer|VarHandleOp|VariableV2|AssignVariable|(?:^|/)(?:kernel|embeddings|gamma|beta|bias)(?:/|$)"
    r"|Resource(?:Sparse)?Apply|ApplyAdam"
    r"|(?:^|/)(?i:adam|adamw|adamax|rmsprop|adagrad|adadelta|nadam|lion|momentum|sgd|ftrl|lamb)(?:_\d+)?(?:/|$)"
    r"|StatelessRandomUniform|StatelessTruncatedNormal|TruncatedNormal|StatelessRandomNormal|random_uniform/",
)
_WEIGHT_FRAME = re.compile(
    r"^(?:build|build_from_config|add_weight|add_variable\w*|add_optimizer_variables|_create_slots|add_slot"
    r"|apply|apply_gradients|_internal_apply_gradients|_?resource_apply\w*|update_step|_initialize\w*"
    r"|load_weights|set_weights|restore)$"
)
_DATA_FRAME = re.compile(
    r"^(?:from_tensor_slices|from_tensors|constant|convert_to_eager_tensor|normalize_element|TensorSliceDataset"
    r"|_constant_eager_impl|_?convert_to_tensor\w*|from_sparse_tensor_slices)$"
)
_DATA_ADAPTER = re.compile(r"array_data_adapter|tensor_like|data_adapter|from_tensor_slices_op")
_DATA_OP = re.compile(r"(?:^|/)(?:MakeIterator|Tensor(?:Slice)?Dataset)")
_BACKWARD = re.compile(r"gradient|_grad|Grad|Backprop", re.IGNORECASE)
_FORWARD = re.compile(
    r"conv|relu|gelu|selu|elu|matmul|einsum|batch_?norm|pool|softmax|attention|dense|dropout|concat|lstm|gru"
    r"|while|bias_?add|BiasAdd|add|mul|pad|layer_?norm|resize|tile|transpose|sigmoid|tanh|fusion|dot",
    re.IGNORECASE,
)
_REPLICA = re.compile(r"\breplica_(\d+)\b")


def find_data(case: Case) -> Iterator[Clue]:
    """An array on its way to the device."""
    if case.failure is None:
        return
    op, functions = case.failure.op or "", [frame.function for frame in case.frames[-14:]]
    is_constant = bool(_CONSTANT.search(op)) or any(map(_DATA_FRAME.match, functions[-6:]))
    is_adapter = any(_DATA_ADAPTER.search(frame.path) for frame in case.frames[-14:])
    is_adapter = is_adapter or bool(_DATA_OP.search(op))
    if (_WEIGHT_OP.search(op) or any(map(_WEIGHT_FRAME.match, functions))) and not is_adapter:
        return
    size = f" of {format_size(case.request_bytes)}" if case.request_bytes else ""
    quote = _quotes((case.failed("copy") or [case.failure])[-1:])
    if is_adapter or any(name.startswith("from_tensor") for name in functions):
        words = f"a whole array{size} was being copied to the device for a data set"
        yield Clue("data_on_device", 2.65, words, quote, case.request_bytes)
    elif is_constant and _is_large(case):
        words = f"a constant{size} was being copied to the device"
        yield Clue("data_on_device", 2.5, words, quote, case.request_bytes)
    elif _is_from_python(case):
        words = f"an array{size} was being copied from Python: no op asked for it"
        yield Clue("data_on_device", 2.5, words, quote, case.request_bytes)
    elif case.failed("copy"):
        yield Clue("data_on_device", 2.0, f"a copy{size} to the device found no room", quote)


def _is_from_python(case: Case) -> bool:
    """TensorFlow allocates outside of any op only for what it takes from Python; XLA always does."""
    is_compiled = case.facts.buffers is not None or bool(case.failed("request", "tpu"))
    return case.failure is not None and case.failure.op == "" and not is_compiled and _is_large(case)


def _is_large(case: Case) -> bool:
    """A constant of a few numbers fails only where everything else has taken the memory."""
    request = case.request_bytes
    if request is None:
        return True
    whole = case.dump.whole_bytes if case.dump else None
    return request > 2**20 and (whole is None or request > 0.01 * whole)


def find_weights(case: Case) -> Iterator[Clue]:
    """A variable that was being made, or an optimizer at work."""
    if case.failure is None or not case.failed("allocator", "tensor", "request", "copy"):
        return
    op = case.failure.op or ""
    quote = (case.failure.evidence,)
    frames = [frame for frame in case.frames[-24:] if _WEIGHT_FRAME.match(frame.function)]
    size = format_size(case.request_bytes) if case.request_bytes else "memory"
    if _WEIGHT_OP.search(op) and not _BACKWARD.search(op):
        yield Clue("weights", 2.4, f"{size} for {op}, which is of weights or of the optimizer", quote)
    elif frames and not any(
        one.function in ("call", "__call__") and one.is_users for one in case.frames[-6:]
    ):
        name = frames[-1].function
        words = f"{size} were asked for while weights or the optimizer were being made (in {name})"
        yield Clue("weights", 2.4, words, (*quote, frames[-1].evidence))


def find_layout(case: Case) -> Iterator[Clue]:
    """XLA's own account of what is in memory."""
    layout = case.facts.buffers
    if layout is None:
        return
    total, kept = layout.parts.get("total"), layout.parts.get("parameter", 0)
    temporary = layout.parts.get("preallocated temp", 0)
    largest = max(layout.buffers, key=lambda buffer: buffer.size_bytes, default=None)
    words = f"XLA needs {format_size(total)}" if total else "XLA needs more than there is"
    if kept and temporary:
        words += (
            f", {format_size(temporary)} of it for what is computed and {format_size(kept)} for what comes in"
        )
    if total and kept > 0.6 * total:
        yield Clue("weights", 2.4, words, (layout.evidence,), None)
        return
    if largest is not None:
        of = f" by {largest.op.rpartition('/')[2][:60]}" if largest.op else ""
        words += f"; the largest buffer has {format_size(largest.size_bytes)}{_shape(largest.shape)}{of}"
    yield Clue("activations", 2.0, words, (layout.evidence,), temporary or None)


def _shape(shape: str | None) -> str:
    return f" ({shape})" if shape else ""


def find_activations(case: Case) -> Iterator[Clue]:
    """An op of a step: forward or backward."""
    failure = case.failure
    if failure is None or not case.failed("allocator", "tensor", "request", "tpu", "torch"):
        return
    if _CONSTANT.search(failure.op or ""):
        return
    op, size = failure.op or "", format_size(failure.requested_bytes) if failure.requested_bytes else "memory"
    shape = f" ({' × '.join(map(str, failure.shape))})" if failure.shape else ""
    if op and (_BACKWARD.search(op) or _FORWARD.search(op)):
        yield Clue("activations", 2.0, f"{op} asked for {size}{shape}", (failure.evidence,))
    elif failure.shape is not None and len(failure.shape) >= 2:
        yield Clue("activations", 1.8, f"a tensor of {size}{shape} found no room", (failure.evidence,))
    elif op or (failure.requested_bytes and (case.dump or case.failed("tpu", "torch"))):
        yield Clue("activations", 1.5, f"{op or 'an op'} asked for {size}", (failure.evidence,))


def find_own(case: Case) -> Iterator[Clue]:
    """An error of memfit's own: nothing that it may do was enough."""
    failures = case.failed("memfit")
    if failures:
        words = "memfit found nothing that makes a step fit"
        yield Clue("activations", 1.6, words, _quotes(failures))


def find_replica(case: Case) -> Iterator[Clue]:
    """Only one of several devices or workers."""
    failures = case.failed("tensor", "allocator", "copy")
    names = [_replica_of(failure.op, failure.device, failure.allocator) for failure in failures]
    known = {name for name in names if name}
    if len(known) != 1:
        return
    (name,) = known
    others = {gpu.rpartition(" ")[2] for gpu in case.facts.gpus} - {name}
    is_first = name in ("replica 0", "GPU:0")
    if name.startswith("CPU") or (is_first and not (others and _is_distributed(case))):
        return
    words = f"only {name} ran out{f', of {len(others) + 1} devices' if others else ''}"
    yield Clue("one_replica", 2.95, words, _quotes(failures))


def _replica_of(op: str | None, device: str | None, allocator: str | None) -> str | None:
    if op and (replica := _REPLICA.search(op)) is not None:
        return f"replica {replica[1]}"
    if device and device.startswith("task:"):
        return device
    if device:
        return device if device.startswith("GPU:") else None
    gpu = re.fullmatch(r"GPU_(\d+)_bfc", allocator or "")
    return f"GPU:{gpu[1]}" if gpu else None


def _is_distributed(case: Case) -> bool:
    return any(re.search(r"replica_\d|CollectiveReduce|NcclAllReduce", op) for op in case.ops)


def _quotes(failures: list[Failure]) -> tuple[Evidence, ...]:
    return tuple(failure.evidence for failure in failures[-2:])
