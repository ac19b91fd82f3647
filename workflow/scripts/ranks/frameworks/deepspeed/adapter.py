"""DeepSpeed (Rasley et al., KDD 2020).

With data parallelism alone, gradients are all-reduced after the backward pass. Along a sharded axis each rank
keeps a shard of the optimizer state, and with higher stages also of gradients and of parameters (ZeRO,
Rajbhandari et al., SC 2020).

All settings are DeepSpeed's defaults, except that gradient clipping, its timers and its compiled kernels are
off.
"""

import contextlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ranks.worker.collectives import Collectives
from ranks.worker.context import MAX_VALIDATION_BATCH, Context
from ranks.worker.epoch_timer import EpochSums
from ranks.worker.phases import End, Untraced
from ranks.worker.trainer import Trainer

#: stage of ZeRO by the level of the factor sharding
STAGES = {"optimizer": 1, "gradients": 2, "parameters": 3}
#: functions of DeepSpeed's backend that communicate gradients and parameters
BACKEND_COLLECTIVES = (
    "all_gather_into_tensor",
    "all_gather_coalesced",
    "all_reduce",
    "reduce",
    "reduce_scatter_tensor",
)


def environment(context: Context) -> dict[str, str]:
    """Return variables for Gloo's interface, the device, and a folder for what PyTorch compiles."""
    return {
        "GLOO_SOCKET_IFNAME": context.spec["interface"],
        "DS_ACCELERATOR": context.spec["device"],
        "LOCAL_RANK": str(context.local_rank),
        "TORCH_EXTENSIONS_DIR": tempfile.gettempdir(),
    }


def start(context: Context) -> str:
    """Create the group of all ranks, PyTorch's and DeepSpeed's over it, and return its backend."""
    import deepspeed
    import torch

    from ranks.libraries.pytorch import join

    if context.spec["device"] == "cuda":  # DeepSpeed uses the device of this number.
        os.environ["LOCAL_RANK"] = str(torch.cuda.current_device())
    # DeepSpeed calls functions that PyTorch has deprecated.
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)
    deepspeed.utils.logger.setLevel("WARNING")
    # Otherwise DeepSpeed compiles its shared-memory all-reduce, which takes minutes.
    deepspeed.ops.__compatible_ops__ = {}
    backend = join(context)
    deepspeed.init_distributed(backend, auto_mpi_discovery=False)
    return backend


def configuration(context: Context, stage: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration.

    In mixed precision, gradients are communicated in single precision, as in the other libraries.
    """
    return {
        "train_micro_batch_size_per_gpu": context.samples[context.replica],
        "gradient_clipping": 0.0,
        "timers": {"throughput": {"enabled": False}},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "torch_autocast": {
            "enabled": context.levels["precision"] == "amp",
            "dtype": "bfloat16",
            "lower_precision_safe_modules": [],
        },
    }


def trainer(context: Context) -> Trainer:
    """Return a trainer whose model and optimizer are DeepSpeed's engine."""
    import deepspeed
    import torch

    from ranks.libraries.pytorch import PyTorchTrainer

    class DeepSpeedTrainer(PyTorchTrainer):
        def distribute(self) -> None:
            self.transport = start(context)
            self.stage = STAGES[context.levels["sharding"]] if context.mesh.sharded > 1 else 0
            self.engine, self.optimizer, *_ = deepspeed.initialize(
                model=self.module, optimizer=self.optimizer, config=configuration(context, self.stage)
            )
            self.model = self.engine
            if context.phases.is_traced:
                mark_calls(context.phases, self.torch_device.type == "cuda")

        def accumulating(self, last: bool) -> contextlib.AbstractContextManager[None]:
            self.engine.set_gradient_accumulation_boundary(last)
            return contextlib.nullcontext()

        def backward(self, loss: torch.Tensor) -> None:
            self.engine.backward(loss, scale_wrt_gas=False)

        def update(self) -> None:
            self.engine.step()

        def settings(self) -> dict[str, str]:
            settings, engine = super().settings(), self.engine
            if context.ranks > 1:
                settings["gradient messages"] = (
                    f"buckets of up to {engine.zero_reduce_bucket_size():,} elements"
                )
            if self.stage:
                overlap = "overlaps computation" if engine.zero_overlap_comm() else "follows computation"
                settings |= {"sharding": f"ZeRO stage {self.stage}", "communication": overlap}
            return settings

        def validate(self) -> EpochSums:
            """See Trainer.

            In ZeRO stage 3 all ranks gather parameters layer by layer, so ranks with fewer batches run extra
            forward passes until the last rank is done.
            """
            seen = super().validate()
            if self.stage == STAGES["parameters"]:
                own = -(-seen.samples // min(MAX_VALIDATION_BATCH, context.samples[context.replica]))
                images, _ = next(context.epoch(1))
                for _ in range(max(context.group.all_gather(own)) - own):
                    with torch.no_grad():
                        self.module(self._normalized(torch.as_tensor(images[:1], device=self.torch_device)))
            return seen

        def weights(self) -> dict[str, np.ndarray]:
            with deepspeed.zero.GatheredParameters(list(self.module.parameters())):
                return super().weights()

    return DeepSpeedTrainer(context)


class Awaited:
    """Handle of an asynchronous collective of DeepSpeed, marked in a traced run.

    On CPUs a callback marks the end of the collective; on accelerators, the stream that waits for it does.
    """

    def __init__(self, work: Any, end: End, phases: Untraced, on_gpu: bool) -> None:
        self._work, self._end, self._phases = work, end, phases
        if not on_gpu:
            work.get_future().add_done_callback(lambda _: end(time.monotonic()))

    def wait(self) -> None:
        """See torch.distributed.Work."""
        go_on = self._phases.waits()
        self._work.wait()
        self._end()
        go_on()


def mark_calls(phases: Untraced, on_gpu: bool) -> None:
    """Mark every collective of DeepSpeed, and the rank's waits for it.

    A rank waits within the call unless the call returns a handle, which is then an `Awaited`. On an
    accelerator, collectives on other streams overlap with the rank's own stream, which waits only for
    collectives that were called on it.
    """
    import deepspeed.comm.comm
    import torch

    def marked(collective: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Any:
            end = phases.begin()
            is_async = named.get("async_op") or (
                on_gpu and torch.cuda.current_stream() != torch.cuda.default_stream()
            )
            go_on = None if is_async else phases.waits()
            work = collective(*args, **named)
            if work is not None:
                return Awaited(work, end, phases, on_gpu)
            end()
            if go_on:
                go_on()
            return None

        return called

    backend = deepspeed.comm.comm.cdb
    for name in BACKEND_COLLECTIVES:
        setattr(backend, name, marked(getattr(backend, name)))


def collectives(context: Context) -> Collectives:
    """Return collectives by DeepSpeed's own communication."""
    import deepspeed

    from ranks.libraries.pytorch import TorchDistributed

    return TorchDistributed(context, start, deepspeed.comm)
