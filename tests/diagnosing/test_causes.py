# ruff: noqa: E501 - lines of logs are long
"""Made-up logs of every kind, each with a cause that is known."""

from __future__ import annotations

import pytest

import memfit
from diagnosing.written_logs import (
    ACTIVATIONS,
    BAR,
    EPOCH,
    EXHAUSTED,
    FIT,
    GIB,
    KERAS,
    MIB,
    USER,
    Era,
    dump,
    failure,
    tensor,
    traceback,
)
from memfit.core.records import Cause

STAMP = "2031-02-03 04:05:06.000007: "
DRIVER = (
    STAMP
    + "I tensorflow/stream_executor/cuda/cuda_driver.cc:741] failed to allocate {} ({} bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
)
CREATED = (
    STAMP
    + "I tensorflow/core/common_runtime/gpu/gpu_device.cc:1639] Created device /job:localhost/replica:0/task:0/device:{} with {} MB memory:  -> device: 0, name: A GPU\n"
)
NOT_A_FAILURE = (
    STAMP
    + "W tensorflow/tsl/framework/bfc_allocator.cc:296] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.31GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may mean that there could be performance gains if more memory were available.\n"
)
ADAPTER = (
    "/opt/env/lib/python3.12/site-packages/tensorflow/python/data/ops/from_tensor_slices_op.py",
    25,
    "_from_tensor_slices",
    "return _TensorSliceDataset(tensors)",
)
BUILD = (
    "/opt/env/lib/python3.12/site-packages/keras/src/layers/core/dense.py",
    111,
    "build",
    "self.kernel = self.add_weight(",
)
LAYOUT = """BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:    {parameter}
              constant allocation:         0B
        maybe_live_out allocation:    1.10GiB
     preallocated temp allocation:    {temp}
                 total allocation:    9.05GiB
Peak buffers:
\tBuffer 1:
\t\tSize: 2.75GiB
\t\tOperator: op_name="jit(step)/dot_general" source_file="/home/somebody/work/attention.py" source_line=88
\t\tXLA Label: fusion
\t\tShape: f32[96,12,800,800]
\t\t==========================
"""
HBM = """Compilation failure: Ran out of memory in memory space hbm. Used 19.31G of 15.48G hbm. Exceeded hbm capacity by 3.83G.

Total hbm usage >= 19.82G:
    reserved        530.00M
    program          {program}
    arguments        {arguments}

Largest program allocations in hbm:

  1. Size: 4.00G
     Operator: op_name="while/transformer/attention/Softmax"
     Shape: f32[64,16,1024,1024]{{3,2,1,0}}
     ==========================
"""
ASYNC = (
    STAMP + "E tensorflow/core/common_runtime/gpu/gpu_cudamallocasync_allocator.cc:288] gpu_async_0 cuMemAllocAsync failed to allocate 734003200 bytes: CUDA error: out of memory (CUDA_ERROR_OUT_OF_MEMORY)\n Reported by CUDA: Free memory/Total memory: {free}/25769803776\n"
    + STAMP + "E tensorflow/core/common_runtime/gpu/gpu_cudamallocasync_allocator.cc:293] Stats: Limit:                     24000000000\nInUse:                     {used}\nMaxInUse:                  {used}\n"
    + STAMP + "E tensorflow/core/common_runtime/gpu/gpu_cudamallocasync_allocator.cc:56] Histogram of current allocation: (allocation_size_in_bytes, nb_allocation_of_that_sizes), ...;\n"
    + STAMP + "E tensorflow/core/common_runtime/gpu/gpu_cudamallocasync_allocator.cc:59] 1024, 12\n"
    + STAMP + "E tensorflow/core/common_runtime/gpu/gpu_cudamallocasync_allocator.cc:59] 734003200, 30\n"
)  # fmt: skip

LOGS: list[tuple[str, Cause, str]] = [
    ("activations with a dump", "activations", ACTIVATIONS),
    ("activations in an op alone", "activations", EXHAUSTED + tensor((48, 96, 200, 200), "gradient_tape/model/up/Relu")),
    ("XLA", "activations", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5012345678 bytes.\n" + LAYOUT.format(parameter="2.20GiB", temp="5.75GiB")),
    ("XLA, mostly what comes in", "weights", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5012345678 bytes.\n" + LAYOUT.format(parameter="7.20GiB", temp="1.75GiB")),
    ("XLA, a small program", "device_taken", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3145728 bytes.\n" + LAYOUT.format(parameter="3.00MiB", temp="1.00MiB").replace("9.05GiB", "5.00MiB")),
    ("a batch of a pipeline", "host_memory", "RESOURCE_EXHAUSTED:  Failed to allocate memory for the batch of component 1\n\t [[{{node MultiDeviceIteratorGetNextFromShard}}]]\n"),
    ("TPU", "activations", HBM.format(program="17.10G", arguments="2.20G")),
    ("TPU, mostly weights", "weights", HBM.format(program="3.10G", arguments="16.20G")),
    ("cuda_malloc_async", "activations", ASYNC.format(free=100663296, used=22020096000)),
    ("cuda_malloc_async beside others", "device_taken", ASYNC.format(free=100663296, used=1020096000)),
    ("a layer's weights", "weights", failure(3 * GIB, "StatelessRandomUniformV2") + dump({3 * GIB: 2, 256: 9}, [500 * MIB], limit=8 * GIB) + traceback(USER, ("/home/somebody/work/train.py", 9, "main", "keras.layers.Dense(60000)(x)"), KERAS, BUILD, error=EXHAUSTED + tensor((13000, 62000), "StatelessRandomUniformV2"))),
    ("an optimizer's slots", "weights", failure(2 * GIB, "Adam/ReadVariableOp_7") + dump({2 * GIB: 3, 256: 9}, [MIB], limit=7 * GIB)),
    ("a data set and activations", "data_on_device", failure(300 * MIB, "model/conv/Relu") + dump({9 * GIB: 2, 300 * MIB: 4, 40 * MIB: 9}, [20 * MIB], limit=20 * GIB)),
    ("a constant", "data_on_device", failure(5 * GIB, "_EagerConst") + "InternalError: Failed copying input tensor from /job:localhost/replica:0/task:0/device:CPU:0 to /job:localhost/replica:0/task:0/device:GPU:0 in order to run _EagerConst: Dst tensor is not initialized.\n"),
    ("slices", "data_on_device", failure(2 * GIB, "") + traceback(USER, ("/home/somebody/work/train.py", 23, "main", "tf.data.Dataset.from_tensor_slices(x)"), ADAPTER, error="tensorflow.python.framework.errors_impl.InternalError: Dst tensor is not initialized.")),
    ("gaps", "fragmentation", EPOCH + failure(800 * MIB, "model/conv/Conv2D") + dump({50 * MIB: 12, 256: 300}, [610 * MIB] * 5, limit=4 * GIB)),
    ("a constant between gaps", "fragmentation", failure(800 * MIB, "_EagerConst") + dump({50 * MIB: 12}, [610 * MIB] * 5, limit=4 * GIB)),
    ("the driver backs off", "device_taken", "".join(DRIVER.format(f"{size / GIB:.2f}G", size) for size in (3 * GIB, 2899102924, 2609192632))),
    ("numbers that look like exit codes", "device_taken", DRIVER.format("2.0G", 2137137137) + DRIVER.format("137", 137)),
    ("bad_alloc in an error", "host_memory", traceback(USER, error="tensorflow.python.framework.errors_impl.InternalError: std::bad_alloc")),
    ("next to nothing", "device_taken", DRIVER.format("4.0K", 4096) * 3),
    ("cuBLAS", "device_taken", STAMP + "E tensorflow/stream_executor/cuda/cuda_blas.cc:226] failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED\n"),
    ("cuDNN", "device_taken", STAMP + "E tensorflow/compiler/xla/stream_executor/cuda/cuda_dnn.cc:377] Could not create cudnn handle: CUDNN_STATUS_NOT_INITIALIZED\n" + traceback(USER, KERAS, error="tensorflow.python.framework.errors_impl.UnknownError: Failed to get convolution algorithm. This is probably because cuDNN failed to initialize")),
    ("NCCL", "device_taken", "node7:311:402 [1] transport/p2p.cc:211 NCCL WARN Cuda failure 'out of memory'\n"),
    ("a context", "device_taken", STAMP + "E tensorflow/core/common_runtime/session.cc:64] Failed to create session: Internal: failed initializing StreamExecutor for CUDA device ordinal 0: Internal: failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory; total memory reported: 11711807488\n"),
    ("little was free", "device_taken", STAMP + "I tensorflow/core/common_runtime/gpu/gpu_device.cc:1356] Found device 0 with properties: \nname: A GPU major: 6 minor: 1\npciBusID: 0000:01:00.0\ntotalMemory: 10.92GiB freeMemory: 320.31MiB\n" + EXHAUSTED + tensor((64, 128, 56, 56), "conv/Conv2D")),
    ("the pool cannot grow", "device_taken", DRIVER.format("2.00G", 2147483648) + failure(90 * MIB, "conv/Conv2D") + dump({20 * MIB: 2}, [5 * MIB], limit=10 * GIB)),
    ("SLURM", "host_memory", EPOCH + "slurmstepd: error: Detected 2 oom_kill events in StepId=771.batch. Some of the step tasks have been OOM Killed.\n"),
    ("SLURM, older", "host_memory", "slurmstepd: error: Exceeded job memory limit at some point.\n"),
    ("the kernel", "host_memory", "[88123.1] Out of memory: Killed process 4711 (python) total-vm:39123456kB, anon-rss:31234560kB\n"),
    ("a cgroup", "host_memory", "Memory cgroup out of memory: Killed process 99 (python3), UID 1000\n"),
    ("Kubernetes", "host_memory", "    State:          Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n"),
    ("Docker", "host_memory", EPOCH + "trainer exited with code 137\n"),
    ("a shell", "host_memory", EPOCH + "train.sh: line 12:  4711 Killed                  python train.py\n"),
    ("zsh", "host_memory", "zsh: killed     python train.py\n"),
    ("LSF", "host_memory", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 137.\n"),
    ("MemoryError", "host_memory", traceback(USER, error="MemoryError")),
    ("an array", "host_memory", traceback(USER, FIT, error="numpy._core._exceptions._ArrayMemoryError: Unable to allocate 37.3 GiB for an array with shape (50000, 500, 200) and data type float64")),
    ("bad_alloc", "host_memory", "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nAborted (core dumped)\n"),
    ("a fork", "host_memory", traceback(USER, error="OSError: [Errno 12] Cannot allocate memory")),
    ("pinned memory", "host_memory", STAMP + "E tensorflow/stream_executor/cuda/cuda_driver.cc:802] failed to alloc 8589934592 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"),
    ("a plain CPU", "host_memory", EXHAUSTED + tensor((90000, 90000), "IteratorGetNext", device="CPU:0", allocator="cpu")),
    ("steps that leave something", "leak", "step 148: loss 0.7\nstep 149: loss 0.6\n" + failure(4 * MIB, "MatMul") + dump({4 * MIB: 150, MIB: 8}, [MIB], limit=620 * MIB)),
    ("dumps that grow", "leak", "".join(failure(64 * MIB, "model/conv/Conv2D") + dump({64 * MIB: count, 30 * MIB: 7}, [MIB], limit=9 * GIB) for count in (90, 110, 130, 138))),
    ("readings that rise", "leak", "".join(f"step {step}: memory in use {1000 + step} MiB\n" for step in range(0, 900, 100)) + EXHAUSTED + tensor((64, 512), "model/dense/MatMul")),
    ("epochs that went well", "leak", "Epoch 7/90\n" + BAR.format(211) + "\n" + failure(64 * MIB, "model/conv/Conv2D") + dump({64 * MIB: 90, 30 * MIB: 40}, [MIB], limit=7 * GIB)),
    ("one of two", "one_replica", CREATED.format("GPU:0", 22000) + CREATED.format("GPU:1", 22000) + EXHAUSTED + tensor((96, 64, 111, 111), "replica_1/model/conv/Conv2D", device="GPU:1", allocator="GPU_1_bfc")),
    ("one worker", "one_replica", EXHAUSTED + tensor((96, 64, 111, 111), "model/conv/Conv2D").replace("task:0", "task:3")),
    ("slots of a session", "weights", "InternalError: Dst tensor is not initialized.\n\t [[Node: layer/w/Adam/Initializer/Const = Const[dtype=DT_FLOAT, value=Tensor<type: float shape: [99,9]>]()]]\n"),
    ("a slot", "weights", EXHAUSTED + tensor((1500000, 256), "words/embeddings/Adam_1")),
    ("an old graph", "activations", "W tensorflow/core/common_runtime/executor.cc:1076] 0x18 Compute status: Resource exhausted: OOM when allocating tensor with shapedim { size: 64 } dim { size: 9000 }\n\t [[Node: sub_9 = Sub[T=DT_FLOAT]()]]\n"),
    ("pinned memory of a pool", "host_memory", failure(4 * GIB, "Copy", allocator="gpu_host_bfc") + dump({4 * GIB: 12}, [MIB], limit=60 * GIB, allocator="gpu_host_bfc")),
    ("a device of crumbs", "device_taken", CREATED.format("GPU:0", 94) + EXHAUSTED + tensor((64, 128, 56, 56), "conv/Conv2D")),
    ("PBS", "host_memory", "=>> PBS: job killed: mem 17001000kb exceeded limit 16777216kb\n"),
    ("a notebook", "host_memory", "Your session crashed after using all available RAM.\n"),
    ("Windows", "host_memory", traceback(USER, error="OSError: [WinError 1455] The paging file is too small for this operation to complete")),
    ("validation at an epoch's end", "activations", "Epoch 1/9\n" + BAR.format(500) + "\n" + EXHAUSTED + tensor((900, 64, 80, 80), "model/conv/Relu")),
    ("no error at all", "not_an_oom", EPOCH + "500/500 - 9s - loss: 0.31\nDone.\n"),
    ("a prose text", "not_an_oom", "In memory of a good dog.\nIt is gone.\n"),
    ("another error", "not_an_oom", EPOCH + traceback(USER, FIT, KERAS, error="ValueError: Input 0 of layer dense is incompatible with the layer")),
    ("an interrupt", "not_an_oom", EPOCH + traceback(USER, FIT, error="KeyboardInterrupt")),
    ("warnings", "not_an_oom", NOT_A_FAILURE * 2 + EPOCH),
    ("a tenth of the host", "not_an_oom", STAMP + "W external/local_tsl/tsl/framework/cpu_allocator_impl.cc:83] Allocation of 822083584 exceeds 10% of free system memory.\n" + EPOCH),
    ("a time limit", "not_an_oom", EPOCH + "slurmstepd: error: *** JOB 812 ON n7 CANCELLED AT 2031-02-03T04:05:06 DUE TO TIME LIMIT ***\nKilled\n"),
    ("a full disk", "not_an_oom", traceback(USER, error=EXHAUSTED + "/checkpoints/ckpt-9.data; No space left on device")),
    ("the wrong cuDNN", "not_an_oom", STAMP + "E tensorflow/stream_executor/cuda/cuda_dnn.cc:319] Loaded runtime CuDNN library: 8.1.0 but source was compiled with: 8.6.0.\n"),
    ("no device", "not_an_oom", STAMP + "E tensorflow/stream_executor/cuda/cuda_driver.cc:271] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected\n" + EPOCH),
    ("a matrix product", "device_taken", "InternalError: Blas GEMM launch failed : a.shape=(90, 70), b.shape=(70, 30), m=90, n=30, k=70\n"),
    ("the runtime of CUDA", "device_taken", "InternalError: CUDA runtime implicit initialization on GPU:0 failed. Status: out of memory\n"),
    ("a library that does not say why", "unknown", "InternalError: NCCL: unhandled cuda error. Set NCCL_DEBUG=WARN for detail\n"),
    ("nothing but the name", "unknown", "ResourceExhaustedError\nRESOURCE_EXHAUSTED: see above\n"),
    ("empty", "unknown", ""),
    ("ours", "activations", "memfit.errors.DoesNotFit: not even one sample fits into 512.0 MiB.\n  Try: memfit plan train.py:model --batch 1\n"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "log"), [pytest.param(*rest, id=name) for name, *rest in LOGS])
def test_causes(cause: Cause, log: str) -> None:
    found = memfit.diagnose(log)
    assert found.cause == cause, found.summary
    assert found.cause not in found.also
    assert found.summary.endswith(".")
    lines = log.split("\n")
    for quote in found.evidence:
        assert quote.text.strip("…")[:20].split()[0] in lines[quote.line - 1]


@pytest.mark.parametrize("era", ["first", "middle", "newest"])
def test_dumps_of_every_age_say_the_same(era: Era) -> None:
    log = failure(800 * MIB, "conv/Conv2D", era=era) + dump(
        {50 * MIB: 12, 256: 300}, [610 * MIB] * 5, limit=4 * GIB, era=era
    )
    found = memfit.diagnose(log)
    assert found.cause == "fragmentation"
    assert "3.0 GiB were free in 5 pieces, the largest of 610.0 MiB" in found.summary
    assert found.error is not None
    assert found.error.requested_bytes == 800 * MIB


def test_the_failure_is_put_together_from_several_lines() -> None:
    found = memfit.diagnose(ACTIVATIONS)
    error = found.error
    assert error is not None
    assert (error.requested_bytes, error.shape, error.dtype) == (700 * MIB, (112, 64, 160, 160), "float")
    assert (error.device, error.allocator, error.op) == ("GPU:0", "GPU_0_bfc", "model/block_3/conv/Conv2D")
    assert found.source == "train.py:17"
    assert found.advice[0].paste == "memfit run --budget 7GiB train.py"


def test_a_data_set_is_recognised_by_its_images() -> None:
    sample = 96 * 96 * 3 * 4
    log = failure(180 * MIB, "conv/Relu") + dump(
        {9000 * sample: 1, 1000 * sample: 1, 170 * MIB: 4}, [MIB], limit=2 * GIB
    )
    found = memfit.diagnose(log + tensor((80, 64, 96, 96), "conv/Relu"))
    assert found.cause == "data_on_device"
    assert "smaller batch would not help" in found.advice[0].what
    assert found.advice[0].saves_bytes is not None


def test_two_workers_whose_lines_alternate() -> None:
    one = dump({50 * MIB: 12}, [610 * MIB] * 5, limit=4 * GIB).splitlines()
    two = dump({400 * MIB: 9}, [MIB], limit=4 * GIB).splitlines()
    two += [""] * (len(one) - len(two))
    both = [f"worker-{n}: {line}" for pair in zip(one, two, strict=True) for n, line in enumerate(pair)]
    log = f"worker-0: {failure(800 * MIB, 'conv/Conv2D').splitlines()[0]}\n" + "\n".join(both)
    found = memfit.diagnose(log)
    assert found.cause in ("fragmentation", "activations")
    only_one = "\n".join(line for line in log.splitlines() if line.startswith("worker-0"))
    assert memfit.diagnose(only_one).cause == "fragmentation"


def test_a_traceback_of_a_notebook() -> None:
    log = (
        "ResourceExhaustedError                    Traceback (most recent call last)\n"
        "<ipython-input-9-0ddba11> in <module>\n      1 for epoch in range(3):\n----> 2     model.fit(x, y)\n\n"
        "/opt/lib/python3.8/site-packages/keras/engine/training.py in fit(self, x)\n"
        "    900       callbacks.on_epoch_begin(epoch)\n--> 901         tmp_logs = self.train_function(iterator)\n\n"
        "ResourceExhaustedError: " + tensor((64, 32, 80, 80), "model/conv/Conv2D")
    )
    found = memfit.diagnose(log)
    assert (found.cause, found.source) == ("activations", "<ipython-input-9-0ddba11>:2")
    assert memfit.diagnose("Cell In[7], line 3\n" + log[-400:]).source == "In[7]:3"


def test_the_last_words_of_a_crash() -> None:
    log = failure(900 * MIB, "") + (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
        '  File "/opt/lib/python3.12/site-packages/tensorflow/python/framework/constant_op.py", line 90 in constant\n'
        '  File "/home/somebody/work/load.py", line 8 in load\n'
        '  File "/home/somebody/work/train.py", line 3 in <module>\n'
    )
    found = memfit.diagnose(log)
    assert (found.cause, found.source) == ("data_on_device", "load.py:8")
