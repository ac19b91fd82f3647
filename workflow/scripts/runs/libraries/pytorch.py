"""Training with PyTorch: the model, the data, the step. Adapters add how gradients travel."""

import abc
import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from runs.worker.context import Context
from runs.worker.meter import Meter, Seen
from runs.worker.model import Layer
from runs.worker.reducer import Reducer
from runs.worker.trainer import Trainer


def build(layers: list[Layer]) -> nn.Sequential:
    """The model as a module that maps images [N, C, H, W] to logits [N, classes]."""
    modules: list[nn.Module] = []
    for layer in layers:
        match layer.kind:
            case "conv":
                modules.append(nn.Conv2d(layer.inputs[-1], layer.units, layer.kernel, padding="same"))
            case "dense":
                modules.append(nn.Linear(layer.inputs[0], layer.units))
            case "flatten":
                modules.append(nn.Flatten())
        if layer.activation == "relu":
            modules.append(nn.ReLU())
    return nn.Sequential(*modules)


def _flattened(layers: list[Layer], kernel: int) -> tuple[int, ...] | None:
    """Shape (height, width, channels) of what was flattened right before the layer of the `kernel`-th kernel, if it was."""
    at = [i for i, layer in enumerate(layers) if layer.kernel_shape][kernel]
    return layers[at - 1].inputs if at and layers[at - 1].kind == "flatten" else None


def to_torch(weights: list[np.ndarray], layers: list[Layer]) -> list[torch.Tensor]:
    """Canonical weights in PyTorch's layout: kernels [out, in, height, width] and [out, in], flattened channels first."""
    made = []
    for i, weight in enumerate(weights):
        if weight.ndim == 4:
            weight = weight.transpose(3, 2, 0, 1)
        elif weight.ndim == 2:
            if shape := _flattened(layers, i // 2):
                weight = weight.reshape(*shape, -1).transpose(2, 0, 1, 3).reshape(weight.shape)
            weight = weight.T
        made.append(torch.from_numpy(np.array(weight, order="C")))
    return made


def to_canonical(tensors: list[torch.Tensor], layers: list[Layer]) -> list[np.ndarray]:
    """PyTorch's weights in the canonical layout; the inverse of `to_torch`."""
    made = []
    for i, tensor in enumerate(tensors):
        weight = tensor.detach().cpu().numpy()
        if weight.ndim == 4:
            weight = weight.transpose(2, 3, 1, 0)
        elif weight.ndim == 2:
            weight = weight.T
            if shape := _flattened(layers, i // 2):
                height, width, channels = shape
                weight = weight.reshape(channels, height, width, -1).transpose(1, 2, 0, 3).reshape(weight.shape)
        made.append(np.array(weight, order="C"))
    return made


def configured(context: Context) -> torch.device:
    """The rank's device, after PyTorch has been given the rank's threads."""
    torch.set_num_threads(context.spec["cores_per_rank"])
    torch.set_num_interop_threads(1)
    return torch.device("cuda", context.local_rank) if context.spec["device"] == "cuda" else torch.device("cpu")


def device_name(device: torch.device) -> str:
    """The device as it goes into a record."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class PyTorchTrainer(Trainer):
    """The training loop of every PyTorch framework. Undistributed as it stands; adapters override the two hooks."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        spec = context.spec
        self.torch_device = configured(context)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = context.levels["precision"] == "tf32"
        torch.manual_seed(spec["seed"])
        self.device = device_name(self.torch_device)
        self.module = build(context.layers)
        with torch.no_grad():
            weights = to_torch(context.initial_weights(), context.layers)
            for parameter, weight in zip(self.module.parameters(), weights, strict=True):
                parameter.copy_(weight)
        self.module.to(self.torch_device)
        levels = context.levels
        self.optimizer = torch.optim.SGD(self.module.parameters(), context.learning_rate, momentum=levels["momentum"])
        self.loss = nn.CrossEntropyLoss()
        self._mean = torch.tensor(context.manifest["mean"], device=self.torch_device).view(1, -1, 1, 1)
        self._std = torch.tensor(context.manifest["std"], device=self.torch_device).view(1, -1, 1, 1)
        self._images, self._labels = _tensors(*context.arrays("train"))
        self._validation = _tensors(*context.validation_arrays())
        self.model: nn.Module = self.module
        self.distribute()

    def distribute(self) -> None:
        """Hook: wrap `model` and `optimizer` so that an optimizer step uses the gradients of all ranks, averaged."""

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Hook: around forward and backward of one batch; before the `last` one of a group no gradients are exchanged."""
        return contextlib.nullcontext()

    def train_epoch(self, epoch: int, meter: Meter) -> Seen:
        """See Trainer. `sync_every` batches add up their gradients, each divided by their number, before one step."""
        loss_sum = torch.zeros((), device=self.torch_device)
        correct = torch.zeros((), dtype=torch.int64, device=self.torch_device)
        batches = self._batches(epoch)
        self.model.train()
        for length in self.context.accumulation_groups():
            for i in range(length):
                images, labels = next(batches)
                with self.accumulating(last=i == length - 1):
                    logits = self.model(images)
                    loss = self.loss(logits, labels)
                    (loss / length if length > 1 else loss).backward()
                loss_sum += loss.detach() * len(labels)
                correct += (logits.argmax(1) == labels).sum()
                if i == length - 1:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                if meter.wants_steps:
                    synchronize(self.torch_device)
                    meter.step()
        synchronize(self.torch_device)
        return Seen(loss_sum.item(), int(correct), self.context.spec["steps"] * self.context.spec["local_batch"])

    @torch.no_grad()
    def validate(self) -> Seen:
        """See Trainer."""
        images, labels = self._validation
        self.module.eval()
        loss_sum, correct = 0.0, 0
        for x, y in zip(images.split(256), labels.split(256), strict=True):
            logits = self.module(self._normalized(x))
            loss_sum += nn.functional.cross_entropy(logits, y.to(self.torch_device), reduction="sum").item()
            correct += int((logits.argmax(1).cpu() == y).sum())
        return Seen(loss_sum, correct, len(labels))

    def weights(self) -> list[np.ndarray]:
        """See Trainer."""
        return to_canonical(list(self.module.parameters()), self.context.layers)

    def device_memory_peak_bytes(self) -> int | None:
        """See Trainer."""
        return torch.cuda.max_memory_allocated(self.torch_device) if self.torch_device.type == "cuda" else None

    def _batches(self, epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for indices in torch.from_numpy(self.context.epoch_batches(epoch)):
            yield self._normalized(self._images[indices]), self._labels[indices].to(self.torch_device)

    def _normalized(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 to float with zero mean and unit variance, on the device."""
        return (images.to(self.torch_device).float() - self._mean) / self._std


class PyTorchReducer(Reducer):
    """Sums of tensors, in place. Adapters add how the ranks are joined and what sums."""

    def __init__(self, context: Context) -> None:
        self.torch_device = configured(context)
        self.device = device_name(self.torch_device)
        self._tensor = torch.empty(0)

    @abc.abstractmethod
    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Hook: sum `tensor` over all ranks, in place."""

    def load(self, values: np.ndarray) -> None:
        """See Reducer."""
        self._tensor = torch.tensor(values, device=self.torch_device)

    def reduce(self) -> None:
        """See Reducer."""
        self.all_reduce(self._tensor)
        synchronize(self.torch_device)

    def result(self) -> np.ndarray:
        """See Reducer."""
        return self._tensor.cpu().numpy()


def _tensors(images: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Prepared images [N, H, W, C] as a uint8 tensor [N, C, H, W], and their labels."""
    return torch.from_numpy(np.array(images.transpose(0, 3, 1, 2), order="C")), torch.from_numpy(labels)
