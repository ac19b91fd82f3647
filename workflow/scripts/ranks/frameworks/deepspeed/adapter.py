"""DeepSpeed (Rasley et al., KDD 2020).

With data parallelism alone, gradients are all-reduced after the backward pass. Along a sharded axis each rank
keeps a shard of the optimizer state, and with higher stages also of gradients and of parameters (ZeRO,
Rajbhandari et al., SC 2020).

With sharded parameters the model is built within `zero.Init`, so that no rank ever has all of it. Adam is
DeepSpeed's FusedAdam on CUDA devices, if its kernel is installed or can be compiled, else PyTorch's; the
result is the same, as is that of DeepSpeed's clipping of gradients. Communication overlaps computation in all
stages, as in DeepSpeed's tutorial. In mixed precision (DeepSpeed's `torch_autocast`), parameters and
gradients of linear layers and convolutions travel in bfloat16. With a `reduce_dtype`, mixed precision is
DeepSpeed's `bf16`: weights in bfloat16 and in float32, and gradients summed in `reduce_dtype`; with
`precision: bf16` there are no weights in float32. All other settings are DeepSpeed's defaults, except that
its timers are off, and that the bucket of gradients is not larger than all of them.
"""

import contextlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from models.precision import AMP, BF16
from ranks.worker.collectives import Collectives
from ranks.worker.context import Context
from ranks.worker.epoch_timer import EpochSums
from ranks.worker.phases import End, Untraced
from ranks.worker.trainer import Trainer

#: stage of ZeRO by the level of the factor sharding
STAGES = {"optimizer": 1, "gradients": 2, "parameters": 3}
DEFAULT_BUCKET_SIZE = 500_000_000  # DeepSpeed's own, in gradients
#: functions of DeepSpeed's backend that communicate gradients and parameters
BACKEND_COLLECTIVES = (
    "all_gather_into_tensor",
    "all_gather_coalesced",
    "all_reduce",
    "reduce",
    "reduce_scatter_tensor",
)


def environment(context: Context) -> dict[str, str]:
    """Return variables for the device, and a folder for what PyTorch compiles."""
    return {
        "DS_ACCELERATOR": context.spec["device"],
        "LOCAL_RANK": str(context.local_rank),
        # Of each attempt, since an attempt that ends while it compiles leaves a lock.
        "TORCH_EXTENSIONS_DIR": f"{tempfile.gettempdir()}/{context.folder.parent.name}-{context.folder.name}",
    }


def start(context: Context) -> str:
    """Create the group of all ranks, PyTorch's and DeepSpeed's over it, and return its backend."""
    import deepspeed
    import torch

    from ranks.libraries.pytorch.collectives import join

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


def has_bfloat16_weights(levels: Mapping[str, Any]) -> bool:
    """Return whether weights are bfloat16 in the forward pass (DeepSpeed's `bf16`, not `torch_autocast`)."""
    precision = levels["precision"]
    return bool(precision == BF16 or (precision == AMP and levels["reduce_dtype"] != "default"))


def configuration(context: Context, stage: int, n_parameters: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration.

    ZeRO allocates a whole bucket for gradients, by default one of 2 GB, so that it would be most of the
    memory of a small model. A bucket of all weights sends the same messages.
    """
    levels = context.levels
    is_bfloat16, without_float32_copy = has_bfloat16_weights(levels), levels["precision"] == BF16
    settings = {
        "train_micro_batch_size_per_gpu": context.sample_counts[context.replica],
        "gradient_clipping": float(levels["clip_norm"]),
        "timers": {"throughput": {"enabled": False}},
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": stage > 0,
            "reduce_bucket_size": min(n_parameters, DEFAULT_BUCKET_SIZE),
        },
        "zero_allow_untested_optimizer": True,
        "torch_autocast": {"enabled": levels["precision"] == AMP and not is_bfloat16, "dtype": "bfloat16"},
    }
    if is_bfloat16:
        settings["bf16"] = {
            "enabled": True,
            "bf16_master_weights_and_grads": without_float32_copy,
            "bf16_optimizer_states": without_float32_copy,
        }
        # Otherwise batch normalization would have running statistics in float32 with weights in bfloat16.
        settings["data_types"] = {"buffer_dtype": "bf16", "keep_in_fp32_modules": ["rotary", "load"]}
    if levels["reduce_dtype"] != "default":
        settings["communication_data_type"] = levels["reduce_dtype"]
    return settings


def has_fused_adam(context: Context) -> bool:
    """Return whether all ranks have the kernel of FusedAdam. It is compiled if it is not installed.

    Compiling needs nvcc, of the CUDA version of PyTorch, and ninja; it takes a minute for each run.
    """
    if context.spec["device"] != "cuda":
        return False
    from deepspeed.ops.op_builder import FusedAdamBuilder

    try:
        FusedAdamBuilder().load()
        error = ""
    except Exception as unavailable:  # DeepSpeed, PyTorch and the compiler raise errors of many kinds.
        error = " ".join(str(unavailable).split())[:200]
    errors = [error for error in context.group.all_gather(error) if error]
    if errors and context.rank == 0:
        print(f"PyTorch's Adam is used in place of DeepSpeed's FusedAdam: {errors[0]}")
    return not errors


def trainer(context: Context) -> Trainer:
    """Return a trainer whose model and optimizer are DeepSpeed's engine."""
    import deepspeed
    import torch
    from deepspeed.utils import safe_get_full_fp32_param

    from ranks.libraries.channels_first import canonical
    from ranks.libraries.pytorch.model import Checkpointed, build, load, rotary_buffers, tensors
    from ranks.libraries.pytorch.optimizer import adam_settings
    from ranks.libraries.pytorch.trainer import PyTorchTrainer

    def parameters(tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return a weight as a list of parameters to gather, [] if it is a buffer."""
        return [tensor] if isinstance(tensor, torch.nn.Parameter) else []

    class DeepSpeedTrainer(PyTorchTrainer):
        def set_precision(self, level: str) -> None:
            super().set_precision(level)
            if has_bfloat16_weights(context.levels):
                self.weight_dtype = torch.bfloat16

        def make_module(self) -> torch.nn.Module:
            """Join all ranks, set the ZeRO stage, and return the model on the device.

            With ZeRO stage 3 the model is built in shards, for which DeepSpeed has to run already.
            """
            context.phases.enter("join")
            self.transport = start(context)
            context.phases.enter("build")
            self.stage = STAGES[context.levels["sharding"]] if context.mesh.sharded > 1 else 0
            if self.stage < STAGES["parameters"] or self.graph.module:
                # Code of the user's that draws weights needs whole ones: DeepSpeed shards them later.
                return super().make_module()
            config = configuration(context, self.stage, self.graph.parameters)
            with deepspeed.zero.Init(config_dict_or_path=config):
                module = build(self.graph, context.levels["checkpointing"])
            for name, table in rotary_buffers(self.graph).items():
                module.register_buffer(name, table)  # zero.Init has rounded it.
            for layer in module.modules():
                if isinstance(layer, Checkpointed):
                    # Otherwise ZeRO frees a block's parameters before its backward pass.
                    layer.is_reentrant = True
            weight_tensors = tensors(module, self.graph)
            for name, weight in context.draw_weights(weight_tensors):
                with deepspeed.zero.GatheredParameters(parameters(weight_tensors[name]), modifier_rank=0):
                    load(module, self.graph, {name: weight})
            return module.to(self.torch_device)

        def distribute(self) -> None:
            levels = context.levels
            if levels["optimizer"] != "sgd" and has_fused_adam(context):
                groups = [
                    {key: group[key] for key in ("params", "lr", "weight_decay")}
                    for group in self.optimizer.param_groups
                ]
                is_decoupled = levels["optimizer"] == "adamw"
                self.optimizer = deepspeed.ops.adam.FusedAdam(
                    groups, adam_w_mode=is_decoupled, **adam_settings(levels)
                )
            self.engine, self.optimizer, *_ = deepspeed.initialize(
                model=self.module,
                optimizer=self.optimizer,
                config=configuration(context, self.stage, self.n_parameters),
            )
            self.model = self.engine
            if context.phases.is_traced:
                mark_calls(context.phases, self.torch_device.type == "cuda")

        def gradient_sync(self, is_last_batch: bool) -> contextlib.AbstractContextManager[None]:
            self.engine.set_gradient_accumulation_boundary(is_last_batch)
            return contextlib.nullcontext()

        def backward(self, loss: torch.Tensor) -> None:
            self.engine.backward(loss, scale_wrt_gas=False)

        def clip_and_update(self) -> None:
            self.engine.step()

        def settings(self) -> dict[str, str]:
            settings, engine = super().settings(), self.engine
            if self.is_mixed and self.weight_dtype == torch.bfloat16:
                settings["mixed precision"] = "DeepSpeed's bf16, beside weights in float32"
            if context.ranks > 1:
                settings["gradient messages"] = (
                    f"buckets of up to {engine.zero_reduce_bucket_size():,} elements"
                )
            if self.stage:
                overlap = "overlaps computation" if engine.zero_overlap_comm() else "follows computation"
                settings |= {"sharding": f"ZeRO stage {self.stage}", "communication": overlap}
            return settings

        def validate(self) -> EpochSums:
            """Evaluate this rank's share of the validation split.

            In ZeRO stage 3 all ranks gather parameters layer by layer.
            """
            sums = super().validate()
            if self.stage == STAGES["parameters"]:
                self.keep_pace()
            return sums

        def weights(self) -> dict[str, np.ndarray]:
            arrays = {}
            for name, tensor in tensors(self.module, self.graph).items():
                with deepspeed.zero.GatheredParameters(parameters(tensor)):
                    operator = self.graph.by_name[name.rpartition(".")[0]]
                    # ZeRO keeps float32 copies of weights in bfloat16.
                    precise = safe_get_full_fp32_param(tensor) if self.stage and parameters(tensor) else None
                    tensor = tensor if precise is None else precise
                    arrays[name] = canonical(tensor.detach().float().cpu().numpy(), operator, self.graph)
            return arrays

        def autocast(self) -> contextlib.AbstractContextManager[Any]:
            is_bfloat16 = self.weight_dtype == torch.bfloat16
            return contextlib.nullcontext() if is_bfloat16 else super().autocast()

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

    from ranks.libraries.pytorch.collectives import TorchDistributed

    return TorchDistributed(context, start, deepspeed.comm)
