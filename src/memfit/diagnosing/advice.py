"""A verdict -> what to do, the best first, each with what it saves and a line to paste."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memfit.core.records import Cause, Evidence, Remedy
from memfit.core.units import format_size
from memfit.diagnosing.causes.case import Case
from memfit.diagnosing.causes.verdict import Verdict

_NO_SCRIPT = "train.py"


def advise(verdict: Verdict, case: Case) -> tuple[Remedy, ...]:
    """Remedies for the cause, then the first for each further cause, none twice."""
    found = list(_BY_CAUSE[verdict.cause](_at_stake(verdict, verdict.cause), case))
    for cause in verdict.also[:2]:
        found += list(_BY_CAUSE[cause](_at_stake(verdict, cause), case))[:1]
    if case.facts.count("memfit"):
        found = [_more_room(case), *(remedy for remedy in found if not _is_memfit_again(remedy))]
    unique = {remedy.what: remedy for remedy in found}
    return tuple(unique.values())


def _is_memfit_again(remedy: Remedy) -> bool:
    """Whether it is to run under memfit, which a log of memfit's own error has done."""
    return any(call in (remedy.paste or "") for call in ("memfit run ", "memfit.fit("))


def _more_room(case: Case) -> Remedy:
    whole = case.dump.whole_bytes if case.dump else None
    more = "memfit doctor" if not whole else f"memfit run --budget {2 * whole >> 20}MiB {_script(case)}"
    return Remedy("Give it more: memfit has split the batches already, as far as that goes.", None, more)


def _at_stake(verdict: Verdict, cause: Cause) -> int | None:
    """The bytes that would be free without a cause."""
    return next((one.bytes_at_stake for one in verdict.findings if one.cause == cause), None)


def _activations(_held: int | None, case: Case) -> Iterator[Remedy]:
    request = _request_of_step(case)
    half = None if request is None else request // 2
    yield Remedy(
        "Keep the batch size and let memfit split batches that do not fit: the update stays the same.",
        half,
        f"memfit run --budget {_budget(case)} {_script(case)}",
    )
    yield Remedy("The same from Python.", half, f'memfit.fit(model, x, y, budget="{_budget(case)}")')
    yield Remedy(
        "Compute activations again in the backward pass instead of keeping them.",
        None,
        "memfit.remat(model)",
    )
    yield Remedy(
        "Compute in 16 bits: activations take half.",
        half,
        'keras.mixed_precision.set_global_policy("mixed_bfloat16")',
    )


def _weights(_held: int | None, case: Case) -> Iterator[Remedy]:
    size = case.request_bytes
    yield Remedy(
        "See what weights, gradients and optimizer need: with a batch of 1 the rest is next to nothing.",
        None,
        f"memfit estimate {_script(case)}:model --batch 1",
    )
    yield Remedy(
        "Take an optimizer that keeps less than Adam, which keeps two more copies of all weights.",
        None if size is None else 2 * size,
        'model.compile(keras.optimizers.SGD(0.01), "mse")',
    )
    yield Remedy(
        "Make the largest layer smaller: a layer on flattened input or a large embedding is most of it.",
        size,
        "model.summary()",
    )


def _data(held: int | None, case: Case) -> Iterator[Remedy]:
    yield Remedy(
        "Stream the data: only the batches in use are in memory. A smaller batch would not help.",
        held,
        'dataset = memfit.data.from_arrays(x, y, batch_size=32, ram="512MiB")',
    )
    if not _is_on_cpu(case):
        yield Remedy(
            "Keep the data set on the host, where TensorFlow would put it on the device.",
            held,
            'with tf.device("CPU:0"): dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)',
        )
    yield Remedy(
        "Keep images as bytes and scale them in the model: float32 takes four times as much.",
        None if held is None else held * 3 // 4,
        'x = x.astype("uint8"); inputs = keras.layers.Rescaling(1 / 255)(inputs)',
    )


def _fragmentation(_held: int | None, case: Case) -> Iterator[Remedy]:
    dump = case.dump
    unused = dump.unused_bytes if dump else None
    if not _is_on_cpu(case):
        yield Remedy(
            "Let the driver put free pieces together.",
            unused,
            f"TF_GPU_ALLOCATOR=cuda_malloc_async python {_script(case)}",
        )
    yield Remedy(
        "Give all batches one shape, so that freed pieces fit again.",
        unused,
        "dataset = dataset.batch(32, drop_remainder=True)",
    )
    yield Remedy(
        "Let memfit retry a step that finds no piece that is large enough, in smaller pieces.",
        None,
        f"memfit run --budget {_budget(case)} {_script(case)}",
    )


def _taken(_held: int | None, case: Case) -> Iterator[Remedy]:
    yield Remedy(
        "See who holds the device, and end what is not needed: notebooks keep it until their kernel ends.",
        None,
        "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv",
    )
    yield Remedy(
        "Take only what is needed, so that cuDNN, cuBLAS and others find room: set it before Python starts.",
        None,
        "export TF_FORCE_GPU_ALLOW_GROWTH=true",
    )
    yield Remedy(
        "Leave a fixed share to others: before the first op.", None, f'memfit.limit("{_budget(case)}")'
    )


def _host(_held: int | None, case: Case) -> Iterator[Remedy]:
    size = case.request_bytes
    yield Remedy(
        "Stream the data within a fixed amount of RAM instead of holding it.",
        size,
        'dataset = memfit.data.from_images("photos", size=(160, 160), batch_size=32, ram="512MiB")',
    )
    yield Remedy(
        "Shuffle names of files, not decoded images, and prefetch one batch.",
        None,
        "dataset = paths.shuffle(len(paths)).map(load).batch(32).prefetch(1)",
    )
    yield Remedy(
        "Run it supervised: if it is killed, it says why, starts again and goes on where it was.",
        None,
        f"memfit run {_script(case)}",
    )


def _leak(held: int | None, _case: Case) -> Iterator[Remedy]:
    yield Remedy(
        "Watch a short run: it names the line that makes what stays.",
        None,
        "with memfit.watch() as watch: train()  # then print(watch.leaks)",
    )
    yield Remedy(
        "Keep numbers, not tensors: what is appended to a list stays on the device.",
        held,
        "losses.append(float(loss))",
    )
    yield Remedy(
        "Make tf.functions and optimizers once, outside of loops; pass tensors, not Python numbers; release "
        "models that were made in one with memfit.release(model).",
        None,
        "step = tf.function(step, reduce_retracing=True)",
    )


def _replica(_held: int | None, case: Case) -> Iterator[Remedy]:
    yield Remedy(
        "See what else is on that device: all replicas get the same share of the batch.",
        None,
        "nvidia-smi",
    )
    request = case.request_bytes
    yield Remedy(
        "Give each replica less: the batch of a strategy is split by the number of its replicas.",
        None if request is None else request // 2,
        "batch_size = 16 * strategy.num_replicas_in_sync",
    )


def _unknown(_held: int | None, case: Case) -> Iterator[Remedy]:
    yield Remedy(
        "Let TensorFlow say what it holds when it runs out, and diagnose that.",
        None,
        f"TF_CPP_MIN_LOG_LEVEL=0 python {_script(case)} 2>&1 | tee {_script(case)[:-3]}.log",
    )


def _nothing(_held: int | None, case: Case) -> Iterator[Remedy]:
    if case.facts.warnings or case.facts.host_warnings:
        yield Remedy("Nothing: the warnings are of things that TensorFlow then did in another way.")


_BY_CAUSE: dict[Cause, Callable[[int | None, Case], Iterator[Remedy]]] = {
    "activations": _activations,
    "weights": _weights,
    "data_on_device": _data,
    "fragmentation": _fragmentation,
    "device_taken": _taken,
    "host_memory": _host,
    "leak": _leak,
    "one_replica": _replica,
    "unknown": _unknown,
    "not_an_oom": _nothing,
}


def _request_of_step(case: Case) -> int | None:
    layout = case.facts.buffers
    return (layout.parts.get("preallocated temp") if layout else None) or case.request_bytes


def _script(case: Case) -> str:
    """The first file of the user's own, which is what was run."""
    every = [frame for frame in case.frames if frame.is_users and frame.path.endswith(".py")]
    return every[0].path.replace("\\", "/").rpartition("/")[2] if every else _NO_SCRIPT


def _budget(case: Case) -> str:
    """The memory that there was, as a budget to type."""
    whole = (case.dump.whole_bytes if case.dump else None) or next(iter(case.facts.gpus.values()), None)
    return "4GiB" if not whole else format_size(whole).replace(" ", "").replace(".0", "")


def _is_on_cpu(case: Case) -> bool:
    return bool(case.failure and (case.failure.device or "").startswith("CPU"))


_OPENINGS: dict[Cause, str] = {
    "activations": "A step needs more memory than there is",
    "weights": "Weights and optimizer need more memory than there is",
    "data_on_device": "Data fills the device",
    "fragmentation": "Free memory is in too many pieces",
    "device_taken": "The device was taken before training could have it",
    "host_memory": "The host ran out of memory, not a device",
    "leak": "Something keeps memory from step to step",
    "one_replica": "One device ran out while others did not",
}


def summarise(verdict: Verdict, case: Case) -> str:
    """The summary of a verdict in one sentence, with numbers."""
    if verdict.cause == "not_an_oom":
        return _other_end(case)
    if verdict.main is None:
        return _unsure(case)
    return f"{_OPENINGS[verdict.cause]}: {verdict.main.words}{_last_straw(verdict, case)}."


def _last_straw(verdict: Verdict, case: Case) -> str:
    """The op that asked last, where the cause is another; the bytes in use, where it is activations."""
    failure, dump = case.failure, case.dump
    if verdict.cause == "activations" and dump is not None and dump.whole_bytes and failure is not None:
        return f" with {format_size(dump.used_bytes)} of {format_size(dump.whole_bytes)} in use"
    if verdict.cause not in ("data_on_device", "leak", "one_replica") or failure is None:
        return ""
    if failure.requested_bytes is None or not failure.op or _is_said(verdict, case):
        return ""
    then = ", where" if verdict.cause == "one_replica" else "; then"
    return f"{then} {failure.op} asked for {format_size(failure.requested_bytes)}"


def _is_said(verdict: Verdict, case: Case) -> bool:
    """Whether the cause is what the failing op did."""
    main = verdict.main
    return main is not None and main.bytes_at_stake is not None and main.bytes_at_stake == case.request_bytes


def _other_end(case: Case) -> str:
    facts = case.facts
    ended = [one for one in facts.tracebacks if one.error is not None]
    if facts.other_ends and facts.other_ends.last is not None:
        return f"Memory is not what ended it: {_said(facts.other_ends.last)}."
    if ended and ended[-1].error is not None:
        return f"Memory did not run out; it ended with {_said(ended[-1].error)}."
    if facts.warnings or facts.host_warnings:
        count = facts.warnings.count + facts.host_warnings.count
        return (
            f"Memory did not run out: {count} warnings say that it is scarce, and none that anything failed."
        )
    return f"Nothing in these {facts.lines + 1:,} lines says that memory ran out."


def _said(quote: Evidence) -> str:
    return quote.text[:160].rstrip(". ")


def _unsure(case: Case) -> str:
    if case.facts.size_bytes == 0:
        return "The log is empty, so nothing is known."
    if case.facts.is_binary:
        return f"These {case.facts.size_bytes:,} bytes are not text, and nothing in them is known."
    failure = case.failure
    if set(case.facts.failures) == {"unclear"}:
        return f"A library failed, maybe for want of memory: {_said(case.failed('unclear')[-1].evidence)}."
    what = f" ({_said(failure.evidence)})" if failure else ""
    return f"Memory ran out{what}, but the log does not say what it was filled with."


def left_open(verdict: Verdict, case: Case) -> Iterator[str]:
    """The facts that the log does not give, in words."""
    if verdict.cause in ("not_an_oom", "unknown") and not case.facts.failures:
        if case.facts.is_binary:
            yield "most of it is not text"
        return
    on_device = case.failed("allocator", "tensor", "copy", "request")
    if on_device and case.dump is None and case.facts.buffers is None:
        yield "the log has no dump of the allocator, so what filled the memory is inferred from the op alone"
    if case.failed("killed") and not case.failed("kill"):
        yield "it is unknown who killed the process; that it was for memory is the likeliest reason"
    if case.facts.count("allocator") > 1:
        yield f"it ran out {case.facts.count('allocator')} times; this is about the last"
    if case.source is None and on_device:
        yield "there is no traceback with a line of your own code"
