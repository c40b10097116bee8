"""A verdict -> what to do, the best first, each with what it saves and a line to paste."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memfit.diagnoses.causes.cases import Case
from memfit.diagnoses.causes.verdicts import Verdict
from memfit.records import Cause, Remedy
from memfit.units import format_size

_NO_SCRIPT = "train.py"


def advise(verdict: Verdict, case: Case) -> tuple[Remedy, ...]:
    """Remedies for the cause, then the first for each further cause, none twice."""
    found = list(_BY_CAUSE[verdict.cause](_at_stake(verdict, verdict.cause), case))
    for cause in verdict.also[:2]:
        found += list(_BY_CAUSE[cause](_at_stake(verdict, cause), case))[:1]
    unique = {remedy.what: remedy for remedy in found}
    return tuple(unique.values())


def _at_stake(verdict: Verdict, cause: Cause) -> int | None:
    """What would be free without a cause."""
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


def _data(held: int | None, _case: Case) -> Iterator[Remedy]:
    yield Remedy(
        "Stream the data: only the batches in use are in memory. A smaller batch would not help.",
        held,
        'dataset = memfit.data.from_arrays(x, y, batch_size=32, ram="512MiB")',
    )
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
    """What there was, as a size to type."""
    whole = (case.dump.whole_bytes if case.dump else None) or next(iter(case.facts.gpus.values()), None)
    return "4GiB" if not whole else format_size(whole).replace(" ", "").replace(".0", "")


def _is_on_cpu(case: Case) -> bool:
    return bool(case.failure and (case.failure.device or "").startswith("CPU"))
