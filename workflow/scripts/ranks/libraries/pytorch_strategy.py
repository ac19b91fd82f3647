"""Train by a strategy (models.strategy), which assigns parts of layers to ranks, each with one device.

Every part has its own autograd graph. Parts exchange regions (models.layout): in the forward pass the outputs
of other parts that a part needs, in the backward pass their gradients in the opposite direction. A message is
sent as soon as its part is computed, and awaited where it is needed. Each message has its own tag, so ranks
can send and receive in any order. If several ranks hold a weight, its gradients are all-reduced among them as
soon as each rank has computed its summand.

Messages pass through host memory by Gloo, since NCCL has no tags. All-reduces run on the device of the
weights, on accelerators by NCCL; all ranks start them in the same order, that of the layers.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from models.graph import Graph, is_trained
from models.layout import Layout, Message, Place, Region, dimensions, lay_out, reads
from models.soap import DIMENSIONS
from models.strategy import from_json
from ranks.libraries.pytorch.collectives import TorchDistributed, join
from ranks.libraries.pytorch.model import tensors
from ranks.libraries.pytorch.optimizer import norm_over_ranks, optimizer_of
from ranks.libraries.pytorch.trainer import PyTorchTrainer, cross_entropy
from ranks.libraries.pytorch_parts import NO_STATE, Part, Shard, names_of, share, size_of, slices, state_size
from ranks.worker.context import Context
from ranks.worker.epoch_timer import EpochSums, EpochTimer
from ranks.worker.phases import Untraced

Incoming = dict[int, tuple[dist.Work, Tensor]]  # message -> its receive operation and buffer


@dataclass(frozen=True)
class Transfer:
    """A message between two parts, as this rank sends or receives it.

    Attributes:
        number: Number of the message in the layout.
        edge: Edge of the model's graph.
        peer: The other rank, None if both parts are on this rank.
        size: Shape of the message.
        source: Slices of the message in the sending part's output.
        target: Slices of the message in the receiving part's input.
        fills: Whether the message is the whole input.
        is_view: Whether the input can share the memory of the sending part: the message is the whole input
            and consists of whole samples, and both parts are on this rank.
        of_state: Whether it is the state of an LSTM.
        made_by: The sending part.
    """

    number: int
    edge: int | None
    peer: int | None
    size: tuple[int, ...]
    source: tuple[slice, ...]
    target: tuple[slice, ...]
    fills: bool
    is_view: bool
    of_state: bool
    made_by: Place


@dataclass
class Task:
    """A part that this rank computes, with its messages, and the tensors of the current step."""

    place: Place
    part: Part
    reads: list[tuple[slice, ...]]  # slices of the samples that the rank has
    inputs_from: list[Transfer]
    outputs_to: list[Transfer]
    sizes: dict[int | None, tuple[int, ...]]  # shape of the input of each edge
    states: frozenset[int | None]  # edges that are the state of an LSTM
    inputs: dict[int | None, Tensor] = field(default_factory=dict)
    output: Tensor = NO_STATE
    state: Tensor = NO_STATE
    gradient: Tensor | None = None
    state_gradient: Tensor | None = None


@dataclass
class Shared:
    """Weights that several ranks hold, and the group of these ranks.

    Their gradients are complete after the backward pass of the layer `after`.
    """

    parameters: list[nn.Parameter]
    group: dist.ProcessGroup
    after: int


class Runner:
    """Run steps of a strategy on one rank.

    Args:
        graph: The model.
        layout: Parts and messages of the strategy.
        rank: This rank.
        device: Its device.
        weights: All weights of the model in PyTorch's layout, by their names in the graph.
        phases: Marks of a traced run.
        host_group: Group of all ranks for messages in host memory, None for the default group.
        label_smoothing: Level of the factor.
    """

    def __init__(
        self,
        graph: Graph,
        layout: Layout,
        rank: int,
        device: torch.device,
        weights: Mapping[str, Tensor],
        phases: Untraced | None = None,
        host_group: dist.ProcessGroup | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        self.graph, self.layout, self.space, self.me, self.device = graph, layout, layout.space, rank, device
        self.host_group, self.label_smoothing = host_group, label_smoothing
        self.phases = phases or Untraced()
        self.kinds = [dimensions(layer, graph) for layer in self.space.layers]
        every = [(layer, part) for layer, ranks in enumerate(layout.devices) for part in range(len(ranks))]
        mine = [place for place in every if layout.device(place) == rank]
        self.shards = {
            (place[0], number): Shard(
                self.space.layers[place[0]], graph, number, layout.shards(place[0]), weights
            ).to(device)
            for place in mine
            for number in (layout.shard(place),)
        }
        for layer, definition in enumerate(self.space.layers):
            if definition.shared is not None and {(layer, 0), (definition.shared, 0)} <= self.shards.keys():
                self.shards[layer, 0].tie(self.shards[definition.shared, 0])
        #: range of samples of a batch that this rank reads or whose labels it needs
        self.sample_range = self._sample_range(mine)
        self.tasks = [self._task(place) for place in mine]
        self._by_place = {task.place: task for task in self.tasks}
        self._shared = list(self._groups())
        self._sent: list[tuple[dist.Work, Tensor]] = []
        self._summing: list[tuple[list[nn.Parameter], Tensor, dist.Work]] = []

    def _sample_range(self, mine: Sequence[Place]) -> tuple[int, int]:
        reading = {edge.target for edge in self.space.reads} | {len(self.space.layers) - 1}
        ranges = [self.layout.region(place)[0] for place in mine if place[0] in reading]
        return (min(first for first, _ in ranges), max(end for _, end in ranges)) if ranges else (0, 0)

    def _task(self, place: Place) -> Task:
        layer, region = place[0], self.layout.region(place)
        begin = self.sample_range[0]
        rank_samples = [(begin, 0), *[(0, 0)] * (DIMENSIONS - 1)]
        shape = self.graph.operators[0].shape
        read = [
            slices(needed, rank_samples, len(shape), 1) for needed in reads(self.space, shape, layer, region)
        ]
        inputs_from = [m for m in self.layout.messages if m.target == place]
        sizes = {m.edge: self._size(m, self.layout.input_region(m)) for m in inputs_from}
        shard = self.shards[layer, self.layout.shard(place)]
        return Task(
            place,
            Part(self.graph, self.space, layer, region, shard),
            read,
            [self._transfer(m, sizes[m.edge], m.source) for m in inputs_from],
            [self._transfer(m, (), m.target) for m in self.layout.messages if m.source == place],
            sizes,
            frozenset(m.edge for m in inputs_from if m.of_state),
        )

    def _transfer(self, message: Message, full_size: tuple[int, ...], partner: Place) -> Transfer:
        peer, size = self.layout.device(partner), self._size(message, message.region)
        computed = self.layout.region(message.source)
        has_whole_samples = message.of_state or list(message.region[1:]) == list(computed[1:])
        return Transfer(
            message.number,
            message.edge,
            None if peer == self.me else peer,
            size,
            self._slices(message, computed),
            self._slices(message, self.layout.input_region(message)),
            size == full_size,
            size == full_size and has_whole_samples and peer == self.me,
            message.of_state,
            message.source,
        )

    def _size(self, message: Message, region: Region) -> tuple[int, ...]:
        layer = message.source[0]
        definition = self.space.layers[layer]
        if message.of_state:
            return state_size(region[0], definition)
        return size_of(region, self.kinds[layer], definition.cell)

    def _slices(self, message: Message, within: Region) -> tuple[slice, ...]:
        layer = message.source[0]
        if message.of_state:
            (first, end), (start, _) = message.region[0], within[0]
            return (slice(first - start, end - start),)
        return slices(message.region, within, self.kinds[layer], self.space.layers[layer].cell)

    def parameters(self) -> dict[str, list[nn.Parameter]]:
        """Return the trained weights of this rank, each once, by their names in the graph."""
        by_name: dict[str, list[nn.Parameter]] = {}
        for shard in self.shards.values():
            for name, parameter in shard.trained().items():
                if not any(parameter is listed for listed in by_name.setdefault(name, [])):
                    by_name[name].append(parameter)
        return by_name

    def n_copies(self) -> dict[int, int]:
        """Return the number of ranks that hold a weight, by its id, for weights that several ranks hold."""
        return {
            id(parameter): dist.get_world_size(shared.group)
            for shared in self._shared
            for parameter in shared.parameters
        }

    def _groups(self) -> Iterator[Shared]:
        """Yield the weights that this rank shares with others, in backward order.

        All ranks create groups in the same order.
        """
        groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        for layers, number in self.layout.sums():
            for members, owned in self._members(layers, number):
                if len(members) < 2:
                    continue
                if members not in groups:
                    groups[members] = dist.new_group(list(members))
                if self.me in members:
                    trained = [self.shards[holder, number].trained()[name] for holder, name in owned]
                    yield Shared(trained, groups[members], layers[-1])

    def _members(
        self, layers: Sequence[int], number: int
    ) -> Iterator[tuple[tuple[int, ...], list[tuple[int, str]]]]:
        """Yield the ranks of each all-reduce of a shard, with the layers and weights in it.

        A tied table is on more ranks than the other weights of its layer.
        """
        layout, first = self.layout, layers[0]
        names = [
            (at, name)
            for at in layers
            for name in names_of(self.space.layers[at], self.graph)
            if is_trained(name)
        ]
        if not (tied := layout.tied(first)):
            yield layout.members(first, number), names
            return
        holder = next((at for at in (first, *tied) if (at, number) in self.shards), first)
        table = f"{self.space.layers[first].operators[0]}.table"
        yield layout.members(first, number), [(holder, table)]
        if rest := [(at, name) for at, name in names if name != table]:
            yield tuple(layout.holders(first, number)), rest

    def forward(self, samples: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Run the forward pass of all parts of this rank, in their order.

        Args:
            samples: Samples `sample_range` of a batch.
            labels: All labels of the batch.

        Returns:
            This rank's share of the mean loss, and its number of correct labels, 0 for a language model.
        """
        loss = torch.zeros((), device=self.device)
        n_correct = torch.zeros((), dtype=torch.int64, device=self.device)
        incoming = self._receiving(
            (transfer for task in self.tasks for transfer in task.inputs_from), backward=False
        )
        self.phases.enter("forward")
        for task in self.tasks:
            inputs = self._assembled(task, incoming)
            task.inputs = inputs
            gathered = [inputs[edge] for edge in inputs if edge not in task.states]
            states = [inputs[edge] for edge in inputs if edge in task.states]
            task.output, task.state = task.part(
                [*(samples[region] for region in task.reads), *gathered], states
            )
            if task.place[0] == len(self.space.layers) - 1:
                logits, region = task.output, self.layout.region(task.place)
                part_labels = labels[tuple(slice(*ends) for ends in region[: labels.dim()])]
                loss_sum = cross_entropy(logits, part_labels, "sum", self.label_smoothing)
                task.output = loss_sum / labels.numel()
                loss += task.output.detach()
                if not self.graph.is_language_model:
                    n_correct += (logits.argmax(-1) == part_labels).sum()
            for transfer in task.outputs_to:
                if transfer.peer is not None:
                    self._send(self._piece(task, transfer), transfer.peer, 2 * transfer.number)
        return loss, n_correct

    def backward(self, scale: float = 1.0, last: bool = True) -> None:
        """Run the backward pass of all parts of this rank, the last one first.

        For the `last` batch before an optimizer step, it also all-reduces the gradients of shared weights.
        """
        incoming = self._receiving(
            (transfer for task in self.tasks for transfer in task.outputs_to), backward=True
        )
        self.phases.enter("backward")
        waiting = list(self._shared) if last else []
        for task in reversed(self.tasks):
            while waiting and waiting[0].after > task.place[0]:
                self._sum(waiting.pop(0))
            for transfer in reversed(task.outputs_to):
                if transfer.number in incoming:
                    self._add(task, transfer, self._wait_for(incoming, transfer))
            self._propagate(task, scale)
            for transfer in reversed(task.inputs_from):
                inputs = task.inputs[transfer.edge]
                gradient = inputs.grad if inputs.grad is not None else torch.zeros_like(inputs)
                piece = gradient[transfer.target]
                if transfer.peer is None:
                    self._add(self._by_place[transfer.made_by], transfer, piece)
                else:
                    self._send(piece, transfer.peer, 2 * transfer.number + 1)
            task.inputs, task.output, task.state, task.gradient, task.state_gradient = (
                {},
                NO_STATE,
                NO_STATE,
                None,
                None,
            )
        for shared in waiting:
            self._sum(shared)
        self.phases.enter("wait")
        self._take_sums()
        for work, _ in self._sent:
            work.wait()
        self._sent = []

    def _propagate(self, task: Task, scale: float) -> None:
        """Run the backward pass of a part."""
        if task.place[0] == len(self.space.layers) - 1:
            (task.output * scale).backward()
            return
        pairs = [(task.output, task.gradient), (task.state, task.state_gradient)]
        if differentiable := [
            (output, gradient) for output, gradient in pairs if gradient is not None and output.requires_grad
        ]:
            torch.autograd.backward(
                [output for output, _ in differentiable], [gradient for _, gradient in differentiable]
            )

    def _sum(self, shared: Shared) -> None:
        """Start the all-reduce of the gradients of shared weights, as one message."""
        gradients = [
            parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            for parameter in shared.parameters
        ]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        end = self.phases.begin()
        work = dist.all_reduce(flat, group=shared.group, async_op=True)
        if self.phases.is_traced:
            work.get_future().add_done_callback(lambda _: end())
        self._summing.append((shared.parameters, flat, work))

    def _take_sums(self) -> None:
        """Wait for all all-reduces, and replace gradients by their results."""
        for parameters, flat, work in self._summing:
            work.wait()
            sizes = [parameter.numel() for parameter in parameters]
            for parameter, gradient in zip(parameters, flat.split(sizes), strict=True):
                parameter.grad = gradient.view_as(parameter)
        self._summing = []

    def _receiving(self, transfers: Iterable[Transfer], backward: bool) -> Incoming:
        """Start receiving messages from other ranks."""
        incoming = {}
        for transfer in transfers:
            if transfer.peer is not None:
                buffer = torch.empty(transfer.size)
                work = dist.irecv(
                    buffer, transfer.peer, group=self.host_group, tag=2 * transfer.number + backward
                )
                incoming[transfer.number] = (work, buffer)
        return incoming

    def _wait_for(self, incoming: Incoming, transfer: Transfer) -> Tensor:
        """Wait for a message, and return it on the device."""
        work, buffer = incoming.pop(transfer.number)
        go_on = self.phases.waits()
        work.wait()
        go_on()
        return buffer.to(self.device)

    def _send(self, piece: Tensor, rank: int, tag: int) -> None:
        content = piece.detach().contiguous().cpu()
        self._sent.append((dist.isend(content, rank, group=self.host_group, tag=tag), content))

    def _piece(self, task: Task, transfer: Transfer) -> Tensor:
        """Return the part of a task's output or state for a message."""
        return (task.state if transfer.of_state else task.output)[transfer.source]

    def _add(self, task: Task, transfer: Transfer, piece: Tensor) -> None:
        """Add the gradient of a message to the gradient of the output or state that it came from."""
        if transfer.of_state:
            if task.state_gradient is None:
                task.state_gradient = torch.zeros_like(task.state)
            task.state_gradient[transfer.source] += piece
        elif task.gradient is None and piece.shape == task.output.shape:
            task.gradient = piece
        else:
            if task.gradient is None:
                task.gradient = torch.zeros_like(task.output)
            task.gradient[transfer.source] += piece

    def _assembled(self, task: Task, incoming: Incoming) -> dict[int | None, Tensor]:
        """Return a part's inputs by edge, assembled from messages, as leaves of the part's autograd graph."""
        by_edge: dict[int | None, Tensor] = {}
        for transfer in task.inputs_from:
            if transfer.number in incoming:
                piece = self._wait_for(incoming, transfer)
            else:
                piece = self._piece(self._by_place[transfer.made_by], transfer).detach()
            if transfer.is_view or (transfer.fills and transfer.peer is not None):
                by_edge[transfer.edge] = piece
                continue
            if transfer.edge not in by_edge:
                by_edge[transfer.edge] = torch.empty(task.sizes[transfer.edge], device=self.device)
            by_edge[transfer.edge][transfer.target] = piece
        for inputs in by_edge.values():
            inputs.requires_grad_()
        return by_edge


def make_host_group(transport: str) -> dist.ProcessGroup | None:
    """Return a group for messages in host memory, None if the default group, of `transport`, sends them.

    Collective.
    """
    return None if transport == "gloo" else dist.new_group(backend="gloo")


class StrategyCollectives(TorchDistributed):
    """Collectives by the same process groups as in training."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._host_group = make_host_group(self.transport)

    def point_to_point(self, message: Tensor) -> Tensor:
        """Send from device memory to device memory, through host memory."""
        after, before = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks
        received = torch.empty(len(message))
        receiving = dist.irecv(received, before, group=self._host_group)
        content = message.cpu()
        sending = dist.isend(content, after, group=self._host_group)
        receiving.wait()
        sending.wait()
        self._received(len(received)).copy_(received)
        return self._buffer


class StrategyTrainer(PyTorchTrainer):
    """A trainer with the parts of its rank; rank 0 also has the whole model, for validation."""

    def distribute(self) -> None:
        """Wrap `model` and `optimizer` so that optimizer steps average gradients over ranks."""
        context = self.context
        self.transport = join(context)
        # Parts of a layer draw different dropout masks.
        torch.manual_seed(context.spec["seed"] + context.rank)
        layout = lay_out(
            context.graph,
            context.spec["local_batch"],
            from_json(context.spec["strategy"]),
            tuple(context.spec["bucket_bytes"]),
        )
        weights = tensors(self.module, self.graph)
        self.host_group = make_host_group(self.transport)
        self.runner = Runner(
            self.graph,
            layout,
            context.rank,
            self.torch_device,
            weights,
            context.phases,
            self.host_group,
            context.levels["label_smoothing"],
        )
        self.optimizer = optimizer_of(self.runner.parameters(), context.levels, context.learning_rate(0))
        if context.rank:
            self.module = self.model = nn.Module()

    def gradient_norm(self, weights: list[Tensor]) -> Tensor:
        """Return the L2 norm of all ranks' gradients; `weights` are what this rank updates."""
        copies = self.runner.n_copies()
        return norm_over_ranks(weights, [copies.get(id(weight), 1) for weight in weights], self.torch_device)

    def gradient_sync(self, is_last_batch: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context manager of one batch's forward and backward pass."""
        self._is_last = is_last_batch
        return contextlib.nullcontext()

    def propagate(self, inputs: Tensor, labels: Tensor, n_batches: int) -> tuple[Tensor, None]:
        """Run forward and backward pass of one of `n_batches` batches before an optimizer step.

        Loss and number of correct labels are this rank's shares of them.
        """
        loss, n_correct = self.runner.forward(inputs, labels)
        self.runner.backward(1 / n_batches, last=self._is_last)
        self._n_correct += n_correct
        return loss, None

    def train_epoch(self, epoch: int, timer: EpochTimer) -> EpochSums:
        """Train this rank's batches of `epoch`; the device is idle on return.

        Losses and correct labels are summed over the ranks of the last layer at the end.
        """
        self._n_correct = torch.zeros((), dtype=torch.int64, device=self.torch_device)
        sums_of_rank = super().train_epoch(epoch, timer)
        sums = torch.tensor(
            [sums_of_rank.loss_sum, int(self._n_correct)], dtype=torch.float64, device=self.torch_device
        )
        if self.context.ranks > 1:
            dist.all_reduce(sums)
        return EpochSums(
            sums[0].item(), int(sums[1]) if self.context.counts_correct else None, sums_of_rank.samples
        )

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Return an iterator over batches: the samples that this rank reads, and all labels."""
        rank_samples = slice(*self.runner.sample_range)
        return self._ready((samples[rank_samples], labels) for samples, labels in self.context.epoch(epoch))

    def validate(self) -> EpochSums:
        """Validate on rank 0, the only rank whose samples count, with all weights."""
        self._gather()
        return super().validate() if self.context.rank == 0 else EpochSums(0.0, 0, 0)

    @torch.no_grad()
    def _gather(self) -> None:
        """Gather all weights in rank 0's module.

        Shards of trained weights come from the first rank that holds them; running statistics are averaged
        over all ranks that hold them.
        """
        layout, me = self.runner.layout, self.context.rank
        weights = tensors(self.module, self.graph) if me == 0 else {}
        for layer, definition in enumerate(layout.space.layers):
            for name in names_of(definition, self.graph) if definition.shared is None else ():
                for number in range(shards := layout.shards(layer)):
                    holders = layout.holders(layer, number)
                    senders = holders[:1] if is_trained(name) else holders
                    shard = self.runner.shards.get((layer, number))
                    mine = shard.weight(name).cpu() if shard and me in senders else None
                    if me == 0:
                        into = share(name, weights[name], number, shards)
                        into.copy_(torch.stack([self._from(rank, mine, into) for rank in senders]).mean(0))
                    elif mine is not None:
                        dist.send(mine.contiguous(), 0, group=self.host_group)

    def _from(self, rank: int, mine: Tensor | None, like: Tensor) -> Tensor:
        """Return on rank 0 its own tensor `mine`, or the one that it receives from `rank`."""
        if rank == 0 and mine is not None:
            return mine
        received = torch.empty(like.shape)
        dist.recv(received, rank, group=self.host_group)
        return received

    def weights(self) -> dict[str, np.ndarray]:
        """Return all weights of the model in the canonical layout (models/graph.py)."""
        self._gather()
        arrays_of_rank = super().weights() if self.context.rank == 0 else {}
        arrays = {}
        for name, shape in self.graph.weights().items():
            value = torch.from_numpy(arrays_of_rank[name]) if arrays_of_rank else torch.empty(shape)
            dist.broadcast(value, 0, group=self.host_group)
            arrays[name] = value.numpy()
        return arrays

    def weights_finite(self) -> bool:
        """Return whether all weights are finite.

        Each rank checks its own shards.
        """
        rank_tensors = [
            tensor
            for shard in self.runner.shards.values()
            for tensor in (*shard.parameters(), *shard.buffers())
        ]
        return all(bool(tensor.isfinite().all()) for tensor in rank_tensors)
