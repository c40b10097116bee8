"""Messages of NVIDIA's libraries: the driver, cuDNN, cuBLAS, NCCL, and a second framework on the device."""

from __future__ import annotations

import re

from memfit.diagnosing.logs.facts import Facts, Failure
from memfit.diagnosing.logs.log_lines import SIZE, Landmark, read_size
from memfit.diagnosing.logs.progress_lines import look_back

_REFUSED = re.compile(
    rf"(?:failed to alloc(?:ate)?|could not allocate)\s+(?:{SIZE}\s*)?\(?(\d+) bytes\)?", re.IGNORECASE
)
_OUT = re.compile(r"CUDA_ERROR_OUT_OF_MEMORY|ErrorMemoryAllocation|Status: out of memory")
_HANDLE = re.compile(
    r"(?:create|initialize|creating)\s+(?:the )?cu(?:dnn|blas)\w*(?: handle)?|cuDNN failed to initialize"
    r"|(?:CUDNN|CUBLAS)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"
    r"|Blas \w*GEMM\w* launch failed|without BLAS support",
    re.IGNORECASE,
)
_UNCLEAR = re.compile(r"unhandled (?:cuda|system) error|(?:CUDNN|CUBLAS)_STATUS_\w+", re.IGNORECASE)
_NCCL = re.compile(r"NCCL.*(?:out of memory|CUDA_ERROR_OUT_OF_MEMORY|failed to allocate)", re.IGNORECASE)
_TORCH = re.compile(rf"CUDA out of memory\. Tried to allocate ({SIZE})")
_TORCH_TOTAL = re.compile(rf"({SIZE}) total capacity|total capacity of ({SIZE})")
_TORCH_FREE = re.compile(rf"({SIZE}) (?:is )?free")
_CREATED = re.compile(r"Created (?:TensorFlow )?device \(?\S*?device:(GPU:\d+) with (\d+) MB memory")
_FREE = re.compile(rf"totalMemory:\s*({SIZE})\s*freeMemory:\s*({SIZE})")
_WRONG_VERSION = re.compile(r"Loaded runtime CuDNN library: \S+ but source was compiled with")
_SCARCE = 0.5  # of a device: less was free when it was made
_TINY_MB = 400  # no GPU of today has so little
_ENOUGH = 1000

LANDMARKS = (
    b"CUDA_ERROR_OUT_OF_MEMORY",
    b"ErrorMemoryAllocation",
    b"CUDNN_STATUS",
    b"CUBLAS_STATUS",
    b"DNN failed to initialize",
    b"NCCL",
    b"Status: out of memory",
    b"Blas ",
    b"BLAS support",
    b"CUDA out of memory",
    b"Created device",
    b"Created TensorFlow device",
    b"Memory: ",
    b"Loaded runtime CuDNN",
)


def recognise(hit: Landmark, facts: Facts) -> None:
    """One line of theirs; a driver may say the same a million times."""
    if hit.landmark == b"CUDA_ERROR_OUT_OF_MEMORY" and facts.count("driver") > _ENOUGH:
        facts.failures["driver"].count += 1
        return
    text = hit.text
    if hit.landmark.startswith(b"Created") or hit.landmark == b"Memory: ":
        _device(hit, facts)
    elif _WRONG_VERSION.search(text):
        facts.other_ends.add(hit.evidence())
    elif (torch := _TORCH.search(text)) is not None:
        _torch(hit, facts, torch)
    elif _NCCL.search(text):
        facts.fail(Failure("collective", hit.evidence(), hit.worker))
    elif "MemAllocAsync" in text:
        return
    elif _OUT.search(text):
        _refused(hit, facts)
    elif _HANDLE.search(text):
        look_back(hit, facts)
        facts.fail(Failure("handle", hit.evidence(), hit.worker))
    elif _UNCLEAR.search(text) and "SUCCESS" not in text:
        facts.fail(Failure("unclear", hit.evidence(), hit.worker))


def _refused(hit: Landmark, facts: Facts) -> None:
    """The driver gave nothing; on the host where it was memory of the host that was asked for."""
    size = _REFUSED.search(hit.text)
    failure = Failure(
        "host" if "on host" in hit.text or "pinned" in hit.text else "driver",
        hit.evidence(),
        hit.worker,
        requested_bytes=int(size[1]) if size else None,
    )
    look_back(hit, facts)
    facts.fail(failure)


def _torch(hit: Landmark, facts: Facts, match: re.Match[str]) -> None:
    total, free = _TORCH_TOTAL.search(hit.text), _TORCH_FREE.search(hit.text)
    look_back(hit, facts)
    facts.fail(
        Failure(
            "torch",
            hit.evidence(),
            hit.worker,
            requested_bytes=read_size(match[1]),
            free_bytes=read_size(free[1]) if free else None,
            total_bytes=read_size(total[1] or total[2]) if total else None,
        )
    )


def _device(hit: Landmark, facts: Facts) -> None:
    """A device that was made, with how much of it there was."""
    if (created := _CREATED.search(hit.text)) is not None and len(facts.gpus) < 256:
        facts.gpus[f"{hit.worker} {created[1]}".strip()] = int(created[2]) * 2**20
        if int(created[2]) < _TINY_MB:
            facts.scarce = hit.evidence()
    free = _FREE.search(f"{hit.text} {hit.following}")
    if free is not None:
        total_bytes, free_bytes = read_size(free[1]), read_size(free[2])
        if total_bytes and free_bytes is not None and free_bytes < _SCARCE * total_bytes:
            facts.scarce = hit.evidence()
