"""Out-of-memory errors are recognized as libraries raise and print them; other errors are not."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.program_sources import SCRIPTS
from ranks.worker import node
from ranks.worker.out_of_memory import DEVICE, HOST, describe_error, describe_text
from support.programs import printed

GIB = 2**30
TORCH = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 3 has a total capacity of 79.25 GiB of which 12.50 "
    "GiB is free. Process 1234 has 66.75 GiB memory in use. Of the allocated memory 65.12 GiB is allocated by "
    "PyTorch, and 812.50 MiB is reserved by PyTorch but unallocated."
)
TORCH_1 = (
    "CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 15.75 GiB total capacity; 14.00 GiB already "
    "allocated; 256.00 MiB free; 14.25 GiB reserved in total by PyTorch)"
)
NCCL = """\
torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1269, \
unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'"""
TENSORFLOW = (
    "OOM when allocating tensor with shape[1024,1024,16] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc [Op:Mul]"
)
HYDROGEN = """\
CUDA error detected in command: "cudaMalloc(&ptr, size)"

    Error Code: 2
    Error Name: cudaErrorMemoryAllocation
    Error Mesg: out of memory"""
XLA = "jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: "


@pytest.mark.parametrize(
    ("text", "place", "device", "sizes"),
    [
        (f"torch.OutOfMemoryError: {TORCH}", DEVICE, 3, (20 * GIB, int(12.5 * GIB), int(79.25 * GIB))),
        (f"[rank0]: torch.cuda.OutOfMemoryError: {TORCH_1}", DEVICE, 0,
         (GIB // 2, GIB // 4, int(15.75 * GIB))),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
         "of 64.00 GiB of which 1.00 GiB is free.", DEVICE, 0, (2 * GIB, GIB, 64 * GIB)),
        ("torch.AcceleratorError: CUDA error: out of memory", DEVICE, None, ()),
        ("RuntimeError: HIP error: out of memory", DEVICE, None, ()),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
         DEVICE, None, ()),
        ("RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
         DEVICE, None, ()),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", DEVICE, None, ()),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", DEVICE, None, ()),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", HOST, None, ()),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate "
         "memory: you tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)",
         HOST, None, (4096,)),
        (NCCL, DEVICE, None, ()),
        ("node1:17:42 [0] include/alloc.h:185 NCCL WARN Cuda failure 'out of memory'", DEVICE, None, ()),
        ("node1:17:42 [0] NCCL WARN HIP failure 2 'out of memory'", DEVICE, None, ()),
        ("node1:17:42 [1] transport.cc:1 NCCL WARN Failed to CUDA calloc async 4194304 bytes",
         DEVICE, None, (4194304,)),
        (f"tensorflow.python.framework.errors_impl.ResourceExhaustedError: {TENSORFLOW}", DEVICE, 1,
         (1024 * 1024 * 16 * 4,)),
        ("OOM when allocating tensor with shape[8,8] and type bfloat16 on /job:localhost/replica:0/task:0/"
         "device:CPU:0 by allocator mklcpu", HOST, None, (128,)),
        ("tensorflow.python.framework.errors_impl.InternalError: Failed copying input tensor from /job:"
         "localhost/replica:0/task:0/device:CPU:0 to /job:localhost/replica:0/task:0/device:GPU:0 in order "
         "to run _EagerConst: Dst tensor is not initialized.", DEVICE, 0, ()),
        (f"{XLA}Out of memory while trying to allocate 21474836480 bytes.", None, None, (20 * GIB,)),
        (f"{XLA}Out of memory allocating 1125899906842624 bytes.", None, None, (2**50,)),
        (f"{XLA}Failed to allocate request for 2.50GiB (2684354560B) on device ordinal 2", DEVICE, 2,
         (2684354560,)),
        ("INTERNAL: failed to load PTX: CUDA_ERROR_OUT_OF_MEMORY: out of memory", DEVICE, None, ()),
        ("F0000 00:00:1764321000.1 42 gpu.cc:7] CUDA_ERROR_OUT_OF_MEMORY", DEVICE, None, ()),
        ("horovod.common.exceptions.HorovodInternalError: cudaMalloc failed: out of memory",
         DEVICE, None, ()),
        (HYDROGEN, DEVICE, None, ()),
        ("LBANN error on rank 1 (cuda.cpp:17): CUDA error (out of memory)", DEVICE, None, ()),
        ("what(): std::bad_alloc", HOST, None, ()),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 PiB for an array with shape "
         "(1125899906842624,) and data type float64", HOST, None, (2**53,)),
        ("MemoryError", HOST, None, ()),
    ],
)  # fmt: skip
def test_texts_of_libraries_are_recognised(
    text: str, place: str | None, device: int | None, sizes: tuple[int, ...]
) -> None:
    report = describe_text(f"step 1\n{text}\nstep 2\n")
    assert report is not None and report.error in text
    assert (report.place, report.device) == (place, device)
    numbers = (report.asked_bytes, report.free_bytes, report.total_bytes)
    assert numbers == (*sizes, *[None] * (3 - len(sizes)))


@pytest.mark.parametrize(
    "text",
    [
        # The library goes on after these.
        "2026-01-05 10:00:00.1: W tensorflow/core/common_runtime/bfc_allocator.cc:501] Allocator (GPU_0_bfc) "
        "ran out of memory trying to allocate 2.30GiB with freed_by_count=0. The caller indicates that this "
        "is not a failure",
        "W0000 00:00:1764321000.123   42 cuda.cc:7] failed to allocate 15.9G: CUDA_ERROR_OUT_OF_MEMORY",
        # Neither a message that is too long nor a full disk is memory.
        "ResourceExhaustedError: RESOURCE_EXHAUSTED: Received message larger than max (12 vs. 4)",
        "RESOURCE_EXHAUSTED: /scratch/x; No space left on device",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",  # a limit of locked memory
        "ring of 8 ranks: room 1, memory 12 GiB of 16 GiB free",
    ],
)
def test_other_texts_are_no_lack_of_memory(text: str) -> None:
    assert describe_text(text) is None


def test_an_error_is_described_through_those_that_it_led_to() -> None:
    with pytest.raises(RuntimeError) as wrapped:
        try:
            np.empty(1 << 50)
        except MemoryError as error:
            raise RuntimeError("the model was not built") from error
    report = describe_error(wrapped.value)
    assert report is not None and (report.place, report.asked_bytes) == (HOST, 2**53)
    no_memory = describe_error(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
    assert no_memory is not None and no_memory.place == HOST


class ResourceExhaustedError(Exception):
    """TensorFlow's error for any exhausted resource."""


@pytest.mark.parametrize(
    ("text", "is_memory"),
    [("OOM when allocating tensor", True), ("Received message larger than max (12 vs. 4)", False)],
)
def test_not_all_that_runs_out_is_memory(text: str, is_memory: bool) -> None:
    assert (describe_error(ResourceExhaustedError(text)) is not None) == is_memory
    assert describe_error(RuntimeError("a rank is gone: it closed its connection")) is None
    with pytest.raises(ValueError, match="unrelated") as replaced:
        try:
            raise MemoryError
        except MemoryError:
            raise ValueError("unrelated") from None
    assert describe_error(replaced.value) is None


LIBRARIES = {
    "pytorch": "import torch\ndef ask(): torch.empty(1 << 50, dtype=torch.uint8)",
    "tensorflow": "import tensorflow as tf\ndef ask(): tf.zeros([1 << 25, 1 << 25], tf.uint8)",
    "jax": "import jax.numpy as jnp\ndef ask(): jnp.zeros((1 << 50,), jnp.uint8).block_until_ready()",
}
ASK = """
import dataclasses, json
from ranks.worker.out_of_memory import describe_error
try:
    ask()
except BaseException as error:
    print(json.dumps(dataclasses.asdict(describe_error(error))))
"""


@pytest.mark.training
@pytest.mark.parametrize(
    "environment", ["pytorch", pytest.param("tensorflow", marks=pytest.mark.every_framework), "jax"]
)
def test_real_errors_of_libraries_are_recognised(environment: str, real: Callable[[str], Any]) -> None:
    lines = printed(real(environment), "-c", LIBRARIES[environment] + ASK, JAX_PLATFORMS="cpu").splitlines()
    report = json.loads(lines[-1])
    assert report["place"] in (HOST, None) and report["asked_bytes"] in (1 << 50, None)
    assert report["asked_bytes"] or environment == "tensorflow", report["error"]


LIMITED = """\
import resource
from ranks.worker.process import as_rank

def run(folder):
    resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
    kept = None
    while True:
        kept = {keep}

as_rank(run)
"""


@pytest.mark.parametrize("keep", ["bytearray(1 << 29)", "[kept]"])
def test_a_rank_without_memory_leaves_a_note(tmp_path: Path, keep: str) -> None:
    """The second rank holds all memory in small pieces while it writes its report file."""
    variables = {
        "PYTHONPATH": str(SCRIPTS), "RINGSIDE_ALARM_S": "60", "RINGSIDE_SCRATCH": str(tmp_path),
        "RINGSIDE_RANK": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", LIMITED.format(keep=keep), str(tmp_path)]
    ended = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    left = json.loads((tmp_path / "out-of-memory-1.json").read_text())
    assert (left["rank"], left["place"], left["asked_bytes"]) == (1, HOST, None)
    assert left["host"] and left["error"] == "MemoryError"


def test_kills_are_read_from_groups_of_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    monkeypatch.setattr(node, "CGROUPS", groups)
    monkeypatch.setattr(node, "OWN_GROUPS", own)
    monkeypatch.setattr(node, "VMSTAT", tmp_path / "vmstat")
    for path in ("job/step", "memory/job/step"):
        (groups / path).mkdir(parents=True)
    own.write_text("0::/job/step\n")
    assert node.oom_kills() is None
    (tmp_path / "vmstat").write_text("nr_free_pages 7\noom_kill 3\n")
    assert node.oom_kills() == 3, "the machine's, as no group counts"
    events = "low 0\nhigh 0\nmax 12\noom 2\noom_kill {}\noom_group_kill 0\n"
    (groups / "job" / "memory.events").write_text(events.format(5))
    assert node.oom_kills() == 5, "of the first group that counts"
    (groups / "job" / "step" / "memory.events").write_text(events.format(1))
    assert node.oom_kills() == 1
    own.write_text("4:memory:/job/step\n0::/\n")
    (groups / "memory" / "job" / "step" / "memory.oom_control").write_text(
        "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"
    )
    assert node.oom_kills() == 4
