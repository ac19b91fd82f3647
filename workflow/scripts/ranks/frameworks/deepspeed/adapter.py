"""DeepSpeed (Rasley et al., KDD 2020).

Where ranks divide samples alone, gradients are all-reduced after the backward pass; on a sharded axis they
keep shares (ZeRO, Rajbhandari et al., SC 2020): of the optimizer's state, also of gradients, also of
parameters.

Everything is as DeepSpeed has it by default, but that it clips no gradients, times nothing and compiles
nothing.
"""

import contextlib
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ranks.worker.collectives import Collectives
from ranks.worker.context import MAX_VALIDATION_BATCH, Context
from ranks.worker.meter import Seen
from ranks.worker.phases import End, Untraced
from ranks.worker.trainer import Trainer

STAGES = {"optimizer": 1, "gradients": 2, "parameters": 3}  # of ZeRO, by the factor sharding
CALLED = (  # DeepSpeed's backend, to communicate gradients and parameters
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

    from ranks.libraries.pytorch import join

    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # of names that DeepSpeed calls
    deepspeed.utils.logger.setLevel("WARNING")
    # It would compile one that sums in shared memory of a node, for minutes
    deepspeed.ops.__compatible_ops__ = {}
    backend = join(context)
    deepspeed.init_distributed(backend, auto_mpi_discovery=False)
    return backend


def configuration(context: Context, stage: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration.

    In mixed precision, gradients are all-reduced in single precision, as in the other libraries.
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
    """A trainer whose model and optimizer are DeepSpeed's engine."""
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
            if context.phases.on:
                mark_calls(context.phases, self.torch_device.type == "cuda")

        def accumulating(self, last: bool) -> contextlib.AbstractContextManager[None]:
            self.engine.set_gradient_accumulation_boundary(last)
            return contextlib.nullcontext()

        def backward(self, loss: torch.Tensor) -> None:
            self.engine.backward(loss, scale_wrt_gas=False)

        def update(self) -> None:
            self.engine.step()

        def validate(self) -> Seen:
            """See Trainer.

            All ranks gather parameters layer by layer, so ranks with fewer batches continue until the last
            one is done.
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
    """A communication that DeepSpeed waits for later.

    On a processor a thread says when it is there; on an accelerator, the stream that waited.
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
    """Mark every call by which DeepSpeed communicates, and where the rank waits for it.

    A rank waits in the call, unless `Awaited` stands for its result.

    An accelerator's other streams communicate while the rank's own computes, which waits only for calls on it.
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
    for name in CALLED:
        setattr(backend, name, marked(getattr(backend, name)))


def collectives(context: Context) -> Collectives:
    """Return collectives by DeepSpeed's own communication."""
    import deepspeed

    from ranks.libraries.pytorch import TorchDistributed

    return TorchDistributed(context, start, deepspeed.comm)
