"""What counts as an OOM: every form that TensorFlow's errors take, as real error objects."""

from __future__ import annotations

from typing import Any

import pytest

from limited import run_limited
from memfit.core.errors import DoesNotFit
from memfit.machine import is_oom, read_oom
from memfit.machine.out_of_memory import PHRASES

pytestmark = pytest.mark.real

TENSOR = (
    "OOM when allocating tensor with shape[64,128,128,8] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc"
)


def test_without_tensorflow_only_the_hosts_memory_error_counts() -> None:
    assert is_oom(MemoryError())
    assert is_oom(type("ArrayMemoryError", (MemoryError,), {})("Unable to allocate 3 GiB"))
    assert not is_oom(ValueError("out of memory"))
    assert is_oom(RuntimeError(f"Unable to automatically build the model. '{TENSOR}'"))
    assert not is_oom(RuntimeError("out of memory, says somebody"))
    assert not is_oom(KeyboardInterrupt())
    assert not is_oom(DoesNotFit("does not fit.", suggestion="less", limit_bytes=None))


def test_the_tensor_is_read() -> None:
    oom = read_oom(
        RuntimeError(f"Graph execution error:\n\n{TENSOR}\n\t [[{{{{node model/relu/Relu}}}}]] [Op:f]")
    )
    assert oom.shape == (64, 128, 128, 8)
    assert oom.requested_bytes == 64 * 128 * 128 * 8 * 4
    assert (oom.dtype, oom.device, oom.allocator) == ("float", "GPU:1", "GPU_1_bfc")
    assert oom.op == "model/relu/Relu"


@pytest.mark.parametrize(
    ("text", "requested", "op"),
    [
        ("Out of memory while trying to allocate 1234567 bytes.", 1234567, None),
        ("Out of memory while trying to allocate 160.00MiB. [Op:f]", 160 * 2**20, "f"),
        ("Unable to allocate 1.50 GiB for an array with shape (7,) and data type uint8", 3 * 2**29, None),
        ("failed to allocate memory [Op:AddV2]", None, "AddV2"),
        (
            "OOM when allocating tensor with shape[7] and type quint8 on /device:CPU:0 by allocator cpu",
            None,
            None,
        ),
        ("", None, None),
        ("Out of memory while trying to allocate 0 bytes.", None, None),
        ("Failed to allocate 1.2.3MB", None, None),
    ],
)
def test_what_is_not_said_is_not_invented(text: str, requested: int | None, op: str | None) -> None:
    oom = read_oom(MemoryError(text))
    assert (oom.requested_bytes, oom.op) == (requested, op)
    assert oom.message


FORMS: list[tuple[str, str, bool]] = [
    ("ResourceExhaustedError", TENSOR, True),
    ("ResourceExhaustedError", "failed to allocate memory [Op:AddV2]", True),
    ("ResourceExhaustedError", "Out of memory while trying to allocate 12 bytes.", True),
    ("ResourceExhaustedError", "MemoryError: Unable to allocate 30 GiB\nTraceback ...", True),
    ("ResourceExhaustedError", "/tmp/checkpoint; No space left on device", False),
    ("ResourceExhaustedError", "/data/x.tfrecord; Too many open files", False),
    ("ResourceExhaustedError", "/data/memory_bank/a.tfrecord; Too many open files", False),
    ("ResourceExhaustedError", "No space left on device [[{{node memory_attention/Write}}]]", False),
    ("UnknownError", "MemoryError: Unable to allocate 30 GiB for an array", True),
    ("ResourceExhaustedError", "Received message larger than max (5 vs. 4)", False),
    ("InternalError", "Dst tensor is not initialized.", True),
    ("InternalError", "Failed copying input tensor from CPU:0 to GPU:0 in order to run _EagerConst: "
     "Dst tensor is not initialized.", True),
    ("InternalError", "RET_CHECK failure", False),
    ("InternalError", "Failed to call ThenRnnForward with model config", False),
    ("UnknownError", "Failed to get convolution algorithm: cuDNN failed to initialize", True),
    ("UnknownError", "CUDNN_STATUS_EXECUTION_FAILED", False),
    ("InternalError", "CUBLAS_STATUS_ALLOC_FAILED", True),
    ("InternalError", "failed to create cublas handle: cublas error", True),
    ("AbortedError", "CUDA_ERROR_OUT_OF_MEMORY: out of memory", True),
    ("FailedPreconditionError", "Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR", True),
    ("InvalidArgumentError", "OOM is not what this is: Incompatible shapes", False),
    ("OutOfRangeError", "End of sequence", False),
    ("DeadlineExceededError", "Collective ops is aborted", False),
]  # fmt: skip


def _judge(forms: list[list[Any]]) -> list[bool]:
    import tensorflow as tf

    from memfit.machine import is_oom

    return [is_oom(getattr(tf.errors, kind)(None, None, message)) for kind, message, _ in forms]


def _real_forms() -> dict[str, Any]:
    """Errors that TensorFlow itself raises here: eager, graph, XLA, a host MemoryError in a py_function."""
    import numpy as np
    import tensorflow as tf

    from memfit.machine import is_oom, read_oom

    def caught(function: Any) -> dict[str, Any]:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - the test judges what came
            return {"type": type(error).__name__, "is_oom": is_oom(error), "oom": read_oom(error).to_dict()}
        return {}

    def of_the_host(_: Any) -> Any:
        return np.zeros(2**50, "uint8")

    def big() -> Any:
        return tf.random.uniform((40, 1024, 1024))

    def small_pieces() -> Any:
        @tf.function
        def graph(scale: Any) -> Any:
            return tf.reduce_sum(tf.random.uniform((40, 1024, 1024)) * scale)

        return graph(tf.constant(2.0))

    def wrong_shapes() -> Any:
        return tf.ones((2, 3)) @ tf.ones((2, 3))

    return {
        "eager": caught(big),
        "graph": caught(small_pieces),
        "host": caught(lambda: tf.py_function(of_the_host, [tf.constant(1.0)], tf.uint8)),
        "shapes": caught(wrong_shapes),
    }


def _xla_form() -> dict[str, Any]:
    import tensorflow as tf

    from memfit.machine import is_oom, read_oom

    @tf.function(jit_compile=True)
    def compiled(scale: Any) -> Any:
        noise = tf.random.stateless_uniform((40, 1024, 1024), (1, 2))
        return tf.linalg.matmul(noise, noise * scale)

    try:
        compiled(tf.constant(2.0))
    except Exception as error:  # noqa: BLE001 - the test judges what came
        return {"type": type(error).__name__, "is_oom": is_oom(error), "oom": read_oom(error).to_dict()}
    return {}


def test_every_known_form_is_judged_by_type_and_content() -> None:
    verdicts = run_limited(_judge, None, forms=FORMS)
    wrong = [form for form, verdict in zip(FORMS, verdicts, strict=True) if verdict is not form[2]]
    assert not wrong


def test_every_phrase_counts_in_every_type_of_error() -> None:
    kinds = ("ResourceExhaustedError", "InternalError", "UnknownError", "AbortedError")
    forms = [
        (kind, f"{text} [Op:AddV2]", True)
        for kind in kinds
        for phrase in PHRASES
        for text in (phrase, phrase.lower())
    ]
    forms += [("ResourceExhaustedError", f"{phrase}; No space left on device", False) for phrase in PHRASES]
    verdicts = run_limited(_judge, None, forms=forms)
    wrong = [form for form, verdict in zip(forms, verdicts, strict=True) if verdict is not form[2]]
    assert not wrong


def test_the_forms_that_tensorflow_raises_here() -> None:
    seen = run_limited(_real_forms, "100MiB")
    for name in ("eager", "graph"):
        assert seen[name]["type"] == "ResourceExhaustedError"
        assert seen[name]["is_oom"] is True
        assert seen[name]["oom"]["shape"] == [40, 1024, 1024]
        assert seen[name]["oom"]["requested_bytes"] == 40 * 2**22
    assert seen["host"]["is_oom"] is True
    assert seen["host"]["oom"]["requested_bytes"] == 2**50
    assert seen["shapes"]["is_oom"] is False


def test_the_form_that_xla_raises_here() -> None:
    seen = run_limited(_xla_form, "100MiB")
    assert seen["is_oom"] is True
    assert seen["oom"]["requested_bytes"] == 160 * 2**20
