"""Train with PyTorch on one device. Adapters add the communication of gradients."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from models.graph import Graph
from models.precision import AMP, BF16, FP32, TF32
from ranks.libraries.ahead import N_SLOTS, Prefetcher
from ranks.libraries.pytorch.device import (
    TorchProfiler,
    configure_library,
    device_name,
    synchronize,
    use_device_clock,
)
from ranks.libraries.pytorch.layers import attention_kernel, scale_auxiliary_losses
from ranks.libraries.pytorch.model import (
    Checkpointed,
    build,
    canonical_weights,
    load,
    make_bfloat16,
    rotary_buffers,
    tensors,
)
from ranks.libraries.pytorch.optimizer import make_optimizer, optimizer_implementation
from ranks.libraries.pytorch.streams import Streams
from ranks.libraries.pytorch.user_model import count_parameters, count_sample_flops, module_statistics
from ranks.worker.batches import Batch
from ranks.worker.context import Context
from ranks.worker.epoch_timer import EpochSums, EpochTimer
from ranks.worker.trainer import CLIP_EPSILON, HEURISTIC, NONE, ON_DEMAND, RECOMPUTED, TIMED, UNFUSED, Trainer


def cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, reduction: str = "mean", label_smoothing: float = 0.0
) -> torch.Tensor:
    """Return the loss of logits [N, classes] and labels [N], or [N, length, vocabulary] and [N, length].

    Logits of fewer than 32 bits become float32.
    """
    precise = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    return nn.functional.cross_entropy(
        precise, labels.flatten(), reduction=reduction, label_smoothing=label_smoothing
    )


class PyTorchTrainer(Trainer):
    """The training loop of every PyTorch framework, on one device; adapters override the hooks.

    Attributes:
        graph: What this rank trains: the whole model (`context.graph`), or its stages in a pipeline.
        module: The module of `graph`, which has the weights.
        model: What a training step calls: `module`, or what wraps or compiles it.
    """

    #: data type of the module's weights and of normalized images
    weight_dtype = torch.float32

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.graph = self.rank_graph(context)
        self.torch_device = configure_library(context)
        self.device = device_name(self.torch_device)
        self.set_precision(context.levels["precision"])
        self.set_memory_format(context.levels["memory_format"])
        self._make_model()
        self._prepare_batches()
        use_device_clock(context.phases, self.torch_device)
        context.phases.use_profiler(TorchProfiler(self.torch_device))
        context.phases.enter("join")
        self.distribute()
        context.phases.enter("build")
        self._compile_model(context.levels["compiler"])
        # Weights may still be on their way to the device, and to other ranks, when the first epoch begins.
        synchronize(self.torch_device)

    def _make_model(self) -> None:
        """Make module, loss and optimizer, and seed PyTorch's generator for dropout."""
        context, graph, levels = self.context, self.graph, self.context.levels
        self.sample_flops = count_sample_flops(graph, graph.module) if graph.module else None
        torch.manual_seed(context.spec["seed"])  # A user-supplied module draws its weights from it.
        self.module = self.make_module()
        self.model: nn.Module = self.module
        self.n_parameters = count_parameters(self.module) if graph.module else graph.parameters
        # Dropout draws from this generator, which layers built with memory have advanced.
        torch.manual_seed(context.spec["seed"] + context.replica)
        self.optimizer = make_optimizer(self.module, graph, levels, context.learning_rate(0))
        self._updates = 0
        self.loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = partial(
            cross_entropy, label_smoothing=levels["label_smoothing"]
        )

    def _prepare_batches(self) -> None:
        """Copy what normalizes images to the device, and start to read ahead for an accelerator."""
        manifest, device = self.context.manifest, self.torch_device
        if self.context.graph.vocabulary is None:
            self._mean = torch.tensor(manifest["mean"], device=device).view(1, -1, 1, 1)
            self._std = torch.tensor(manifest["std"], device=device).view(1, -1, 1, 1)
        self._ahead = Prefetcher(Streams(device)) if device.type == "cuda" else None

    def _compile_model(self, level: str) -> None:
        """Compile what a training step calls, by the level of `compiler`."""
        if level == "torch-compile":
            self.model = torch.compile(self.model)

    def set_memory_format(self, level: str) -> None:
        """Set the order of the dimensions of images in memory by the level of `memory_format`."""
        is_last = level == "channels-last"
        self._memory_format = torch.channels_last if is_last else torch.contiguous_format

    def set_precision(self, level: str) -> None:
        """Set `weight_dtype` and PyTorch's switch for TF32 by the level of `precision` (a hook).

        `amp` sets nothing here: it acts in `autocast`, in each forward pass.

        Raises:
            ValueError: If PyTorch's trainers do not have the level.
        """
        if level not in (FP32, TF32, AMP, BF16):
            raise ValueError(f"PyTorch cannot train with precision {level}")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = level == TF32
        if level == BF16:
            self.weight_dtype = torch.bfloat16

    @property
    def is_mixed(self) -> bool:
        """Whether products are bfloat16 with weights in float32."""
        return bool(self.context.levels["precision"] == AMP)

    def rank_graph(self, context: Context) -> Graph:
        """Return the graph that this rank trains: the model, or its stages in a pipeline (a hook)."""
        return context.graph

    def build_module(self, graph: Graph) -> nn.Module:
        """Return the module of a graph with weights of the run's data type, before they have values."""
        module = build(graph, self.context.levels["checkpointing"])
        if self.weight_dtype != torch.float32:
            # An expert's load sums small shares, which bfloat16 would round away.
            make_bfloat16(module, [*rotary_buffers(graph), "load"])
        return module

    def make_module(self) -> nn.Module:
        """Return the model with its initial weights on the device (a hook)."""
        module = self.build_module(self.graph)
        load(module, self.graph, dict(self.context.draw_weights(self.graph.weights())))
        return module.to(self.torch_device, memory_format=self._memory_format)

    def distribute(self) -> None:
        """Wrap `model` and `optimizer` so that optimizer steps average gradients over ranks (a hook)."""

    def gradient_sync(
        self,
        is_last_batch: bool,  # noqa: ARG002 (adapters use it)
    ) -> contextlib.AbstractContextManager[None]:
        """Return the context manager of one batch's forward and backward pass (a hook).

        Args:
            is_last_batch: Whether an optimizer step follows; other batches need no all-reduce.
        """
        return contextlib.nullcontext()

    def train_epoch(self, epoch: int, timer: EpochTimer) -> EpochSums:
        """Train this rank's batches of `epoch`; the device is idle on return.

        Each optimizer step uses the mean of the gradients of `sync_every` batches.
        """
        loss_sum = torch.zeros((), device=self.torch_device)
        counts = self.context.counts_correct
        correct = torch.zeros((), dtype=torch.int64, device=self.torch_device)
        batches, phases = self._batches(epoch), self.context.phases
        self.model.train()
        for n_batches in self.context.accumulation_groups:
            for i in range(n_batches):
                phases.step()
                phases.enter("data")
                inputs, labels = next(batches)
                with self.gradient_sync(i == n_batches - 1):
                    loss, logits = self.propagate(inputs, labels, n_batches)
                phases.enter("metrics")
                loss_sum += loss * len(labels)
                if counts and logits is not None:
                    correct += (logits.argmax(-1) == labels).sum()
                # Otherwise the next batch would find its predecessor's logits in memory.
                del logits
                if i == n_batches - 1:
                    phases.enter("optimizer")
                    self._optimizer_step()
                if timer.wants_steps:
                    synchronize(self.torch_device)
                    timer.step()
        synchronize(self.torch_device)
        samples = self.context.spec["steps"] * self.context.spec["local_batch"]
        return EpochSums(loss_sum.item(), int(correct) if counts else None, samples)

    def propagate(
        self, inputs: torch.Tensor, labels: torch.Tensor, n_batches: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run forward and backward pass of one of `n_batches` batches before an optimizer step (a hook).

        Returns:
            The batch's loss, 0 if another rank has it, and its logits, None if another rank has them or
            nothing needs them.
        """
        phases = self.context.phases
        scale_auxiliary_losses(self.module, n_batches)
        phases.enter("forward")
        with self.autocast():
            logits = self.model(inputs)
            loss = self.loss(logits, labels)
        phases.enter("backward")
        self.backward(loss / n_batches if n_batches > 1 else loss)
        return loss.detach(), logits

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a batch's loss to the accumulated ones (a hook)."""
        loss.backward()

    def clip_and_update(self) -> None:
        """Clip the gradients, update the weights and clear the gradients (a hook)."""
        if limit := self.context.levels["clip_norm"]:
            updated = (weight for group in self.optimizer.param_groups for weight in group["params"])
            weights = [weight for weight in updated if weight.grad is not None]
            factor = limit / (self.gradient_norm(weights) + CLIP_EPSILON)
            torch._foreach_mul_([weight.grad for weight in weights], factor.clamp(max=1.0))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def gradient_norm(self, weights: list[torch.Tensor]) -> torch.Tensor:
        """Return the L2 norm of all ranks' gradients; `weights` are what this rank updates (a hook)."""
        norms = torch._foreach_norm([weight.grad for weight in weights], 2, torch.float32)
        return torch.linalg.vector_norm(torch.stack(norms))

    @torch.no_grad()
    def validate(self) -> EpochSums:
        """Evaluate this rank's share of the validation split."""
        self.module.eval()
        loss_sum, correct, samples = 0.0, 0, 0
        for inputs, expected in self._ready(self.context.validation()):
            with self.autocast():
                if (logits := self.predict(inputs)) is None:
                    continue
                loss_sum += cross_entropy(logits, expected, "sum").item() / self.context.positions
            correct += int((logits.argmax(-1) == expected).sum())
            samples += len(expected)
        return EpochSums(loss_sum, correct, samples)

    @torch.no_grad()
    def keep_pace(self) -> None:
        """Run forward passes of one sample until ranks with more validation batches are done, too.

        Libraries need them if gathering the parameters of a layer is collective.
        """
        dtype = torch.uint8 if self.context.graph.vocabulary is None else torch.int64
        sample = torch.zeros((1, *self.context.graph.shape), dtype=dtype, device=self.torch_device)
        for _ in range(self.context.n_padding_batches):
            with self.autocast():
                self.predict(self._normalized(sample))

    def predict(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """Return the logits of a validation batch, None if another rank has them (a hook)."""
        return self.module(inputs)

    def weights(self) -> dict[str, np.ndarray]:
        """Return all weights of the model in the canonical layout (models/graph.py)."""
        return canonical_weights(self.module, self.context.graph)

    def statistics(self) -> dict[str, np.ndarray]:
        """Return the untrained weights of this rank, such as running statistics."""
        tensors_by_name = tensors(self.module, self.graph)
        names = module_statistics(self.module) if self.graph.module else self.graph.statistics
        return {name: tensors_by_name[name].float().cpu().numpy() for name in names}

    def set_statistics(self, statistics: dict[str, np.ndarray]) -> None:
        """Replace the untrained weights."""
        load(self.module, self.graph, statistics)

    def settings(self) -> dict[str, str]:
        """Return the settings of this rank by name, after the last epoch."""
        graph, device = self.context.graph, self.torch_device
        on_gpu, is_autocast = device.type == "cuda", isinstance(self.autocast(), torch.autocast)
        settings = {
            "optimizer implementation": optimizer_implementation(self.optimizer),
            "compiler": "torch.compile" if hasattr(self.model, "_orig_mod") else NONE,
            "mixed precision": "autocast to bfloat16" if is_autocast else NONE,
            "float32 products": "TF32" if torch.backends.cuda.matmul.allow_tf32 else "float32",
            "input pipeline": f"a thread copies up to {N_SLOTS} batches ahead" if self._ahead else ON_DEMAND,
            "threads": str(torch.get_num_threads()),
        }
        if self.context.levels["precision"] == BF16:
            settings["weights"] = "bfloat16"
        if any(isinstance(layer, Checkpointed) for layer in self.module.modules()):
            settings["activations"] = RECOMPUTED[self.context.levels["checkpointing"]]
        if graph.vocabulary is None:
            is_last = self._memory_format == torch.channels_last
            settings["memory format"] = "channels last" if is_last else "channels first"
        if on_gpu and (graph.has_convolutions or graph.module):
            settings["convolution algorithms"] = TIMED if torch.backends.cudnn.benchmark else HEURISTIC
        dtype = torch.bfloat16 if self.is_mixed else self.weight_dtype
        kernels = {
            attention_kernel(operator, graph.by_name[operator.inputs[-1]].shape[0], dtype, device)
            for operator in graph.operators
            if operator.kind == "attention"
        }
        if kernels:
            settings["attention"] = ", ".join(sorted(kernels)).replace("unfused", UNFUSED)
        return settings

    def program_report(self) -> dict[str, Any] | None:
        """Return what only ranks can report (`measured.program_report` in record.json), if anything.

        Only ranks know the size of a user-supplied module.
        """
        if not self.graph.module:
            return None
        return {"parameters": self.n_parameters, "sample_flops": self.sample_flops}

    def reset_device_memory_peak(self) -> None:
        """Restart the peak of device memory at its present use."""
        if self.torch_device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.torch_device)

    def read_device_memory_peak(self) -> int | None:
        """Return the peak of device memory in bytes, None if the library does not report it.

        It counts tensors, without memory that the allocator caches for later ones.
        """
        return (
            torch.cuda.max_memory_allocated(self.torch_device) if self.torch_device.type == "cuda" else None
        )

    def _optimizer_step(self) -> None:
        """Set the learning rate of the next optimizer step, and take it."""
        rate = self.context.learning_rate(self._updates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.clip_and_update()
        self._updates += 1

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return autocast to bfloat16 for `precision: amp`, else a context without effect (a hook)."""
        if self.is_mixed:
            return torch.autocast(self.torch_device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def _batches(self, epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return self._ready(self.context.epoch(epoch))

    def _ready(self, batches: Iterable[Batch]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Return an iterator over the model's inputs and labels; an accelerator gets them ahead of time."""
        if self._ahead is None:
            return ((self._normalized(inputs), torch.from_numpy(labels)) for inputs, labels in batches)
        return self._ahead.batches(batches, lambda inputs, labels: (self._normalized(inputs), labels.clone()))

    def _normalized(self, inputs: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Return images, uint8 [N, H, W, C], as normalized float [N, C, H, W]; copy tokens."""
        if self.context.graph.vocabulary is not None:
            return torch.as_tensor(inputs).clone()
        bytes_ = torch.as_tensor(inputs).permute(0, 3, 1, 2)
        # The strides of images with one channel fit both formats, and `contiguous` would keep them. Then the
        # first kernel and its gradient would have different strides, of which DDP warns.
        images = (bytes_.to(torch.float32, memory_format=self._memory_format) - self._mean) / self._std
        return images.to(self.weight_dtype)
