"""Training by a strategy (models.strategy), which assigns parts of layers to ranks, each with one device.

Every part is a piece of autograd of its own. Between them go regions (models.layout): forward what a part
needs of the outputs of others, backward the gradients of these the other way, which is the transpose. A
message leaves as soon as its part is computed, and is waited for where it is needed; each has a tag of its
own, so that ranks may come to them in any order. Gradients of weights that several ranks have are summed
among these, as soon as each has its own.

Messages pass through the processor's memory, by Gloo: NCCL has no tags. Sums are computed where weights lie:
on accelerators by NCCL, whose ranks come to them in one order, since all go through the layers in one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from models.graph import Graph, is_decayed, is_trained
from models.layout import Layout, Message, Place, Region, dimensions, lay_out, reads
from models.soap import DIMENSIONS
from models.strategy import from_json
from ranks.libraries.pytorch import (
    ADAM,
    PyTorchTrainer,
    TorchDistributed,
    cross_entropy,
    join,
    synchronize,
    tensors,
)
from ranks.libraries.pytorch_parts import NO_STATE, Part, Shard, names_of, share, size_of, slices, state_size
from ranks.worker.context import Context
from ranks.worker.meter import Meter, Seen
from ranks.worker.phases import Untraced

Coming = dict[int, tuple[dist.Work, Tensor]]  # message -> what waits for it, and where it will lie


@dataclass(frozen=True)
class Transfer:
    """A message as one of its two ranks sees it.

    `other`: the other rank, None where it is this one; `source`, `target`: where it is in what the one part
    makes, and in what the other one takes; `fills`: whether it is all that this takes.
    """

    number: int
    edge: int | None
    peer: int | None
    size: tuple[int, ...]
    source: tuple[slice, ...]
    target: tuple[slice, ...]
    fills: bool
    of_state: bool
    made_by: Place


@dataclass
class Task:
    """A part that this rank computes, with its inputs and outputs, and what its backward pass needs."""

    place: Place
    part: Part
    reads: list[tuple[slice, ...]]  # of the samples that the rank has
    inputs_from: list[Transfer]
    gives: list[Transfer]
    sizes: dict[int | None, tuple[int, ...]]  # by edge, of all that it takes of it
    states: frozenset[int | None]  # edges that are the state of an LSTM
    inputs: dict[int | None, Tensor] = field(default_factory=dict)
    output: Tensor = NO_STATE
    state: Tensor = NO_STATE
    gradient: Tensor | None = None
    state_gradient: Tensor | None = None


@dataclass
class Shared:
    """Weights that other ranks have, too: the group of those who do.

    Their gradients are there after the backward pass of the layer `after`.
    """

    parameters: list[nn.Parameter]
    group: dist.ProcessGroup
    after: int


class Runner:
    """Runs steps of a strategy on one rank.

    `weights`: all of the model, as PyTorch keeps them; `carries`: the group of all ranks that carries
    messages, where the group of all carries none of the processor's memory.
    """

    def __init__(
        self,
        graph: Graph,
        layout: Layout,
        rank: int,
        device: torch.device,
        weights: Mapping[str, Tensor],
        phases: Untraced | None = None,
        carries: dist.ProcessGroup | None = None,
    ) -> None:
        self.graph, self.layout, self.space, self.me, self.device = graph, layout, layout.space, rank, device
        self.carries = carries
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
        #: samples of a batch of which this rank reads, and those whose labels it needs
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
        own = [(begin, 0), *[(0, 0)] * (DIMENSIONS - 1)]
        shape = self.graph.operators[0].shape
        read = [slices(needed, own, len(shape), 1) for needed in reads(self.space, shape, layer, region)]
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
        return Transfer(
            message.number,
            message.edge,
            None if peer == self.me else peer,
            size,
            self._slices(message, self.layout.region(message.source)),
            self._slices(message, self.layout.input_region(message)),
            size == full_size,
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
        """Yield the ranks of a sum, with this rank's weights and layers in it.

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

        `samples`: of a batch those that are `wanted`; `labels`: all. This rank's share of the mean loss, and
        how many of its labels were met.
        """
        loss = torch.zeros((), device=self.device)
        met = torch.zeros((), dtype=torch.int64, device=self.device)
        coming = self._receiving(
            (transfer for task in self.tasks for transfer in task.inputs_from), backward=False
        )
        self.phases.enter("forward")
        for task in self.tasks:
            inputs = self._assembled(task, coming)
            task.inputs = inputs
            gathered = [inputs[edge] for edge in inputs if edge not in task.states]
            states = [inputs[edge] for edge in inputs if edge in task.states]
            task.output, task.state = task.part(
                [*(samples[region] for region in task.reads), *gathered], states
            )
            if task.place[0] == len(self.space.layers) - 1:
                logits, region = task.output, self.layout.region(task.place)
                told_labels = labels[tuple(slice(*ends) for ends in region[: labels.dim()])]
                task.output = cross_entropy(logits, told_labels, "sum") / labels.numel()
                loss += task.output.detach()
                met += (logits.argmax(-1) == told_labels).sum()
            for transfer in task.gives:
                if transfer.peer is not None:
                    self._send(self._piece(task, transfer), transfer.peer, 2 * transfer.number)
        return loss, met

    def backward(self, scale: float = 1.0, last: bool = True) -> None:
        """Run the backward pass of all parts of this rank, the last one first.

        After the `last` batch before an update, gradients of shared weights are summed.
        """
        coming = self._receiving((transfer for task in self.tasks for transfer in task.gives), backward=True)
        self.phases.enter("backward")
        waiting = list(self._shared) if last else []
        for task in reversed(self.tasks):
            while waiting and waiting[0].after > task.place[0]:
                self._sum(waiting.pop(0))
            for transfer in reversed(task.gives):
                if transfer.number in coming:
                    self._add(task, transfer, self._waited(coming, transfer))
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
        """Start the sum of the gradients of shared weights, as one message."""
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
        """Wait for all sums, and put them in the place of gradients."""
        for parameters, flat, work in self._summing:
            work.wait()
            sizes = [parameter.numel() for parameter in parameters]
            for parameter, own in zip(parameters, flat.split(sizes), strict=True):
                parameter.grad = own.view_as(parameter)
        self._summing = []

    def _receiving(self, transfers: Iterable[Transfer], backward: bool) -> Coming:
        """Start to receive messages from other ranks."""
        coming = {}
        for transfer in transfers:
            if transfer.peer is not None:
                room = torch.empty(transfer.size)
                work = dist.irecv(room, transfer.peer, group=self.carries, tag=2 * transfer.number + backward)
                coming[transfer.number] = (work, room)
        return coming

    def _waited(self, coming: Coming, transfer: Transfer) -> Tensor:
        """Return a received message as soon as it has arrived."""
        work, room = coming.pop(transfer.number)
        go_on = self.phases.waits()
        work.wait()
        go_on()
        return room.to(self.device)

    def _send(self, piece: Tensor, rank: int, tag: int) -> None:
        lying = piece.detach().contiguous().cpu()
        self._sent.append((dist.isend(lying, rank, group=self.carries, tag=tag), lying))

    def _piece(self, task: Task, transfer: Transfer) -> Tensor:
        """Return the content of a message from a part of this rank."""
        return (task.state if transfer.of_state else task.output)[transfer.source]

    def _add(self, task: Task, transfer: Transfer, piece: Tensor) -> None:
        """Add the gradient of what a message carried to that of the part that made it."""
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

    def _assembled(self, task: Task, coming: Coming) -> dict[int | None, Tensor]:
        """Return a part's inputs by edge, assembled from messages; gradients end at them."""
        by_edge: dict[int | None, Tensor] = {}
        for transfer in task.inputs_from:
            if transfer.number in coming:
                piece = self._waited(coming, transfer)
            else:
                piece = self._piece(self._by_place[transfer.made_by], transfer).detach()
            if transfer.fills:
                by_edge[transfer.edge] = piece
                continue
            if transfer.edge not in by_edge:
                by_edge[transfer.edge] = torch.empty(task.sizes[transfer.edge], device=self.device)
            by_edge[transfer.edge][transfer.target] = piece
        for inputs in by_edge.values():
            inputs.requires_grad_()
        return by_edge


def carrier(transport: str) -> dist.ProcessGroup | None:
    """Return the group for messages between ranks that use `transport`, None if it is the default group.

    Collective.
    """
    return None if transport == "gloo" else dist.new_group(backend="gloo")


class StrategyCollectives(TorchDistributed):
    """Messages go as a training's do, sums as well."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._carries = carrier(self.transport)

    def point_to_point(self, message: Tensor) -> Tensor:
        """Send from device memory to device memory, through host memory."""
        after, before = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks
        room = torch.empty(len(message))
        coming = dist.irecv(room, before, group=self._carries)
        lying = message.cpu()
        leaving = dist.isend(lying, after, group=self._carries)
        coming.wait()
        leaving.wait()
        self._received(len(room)).copy_(room)
        return self._room


class StrategyTrainer(PyTorchTrainer):
    """A trainer with only the parts of its rank; rank 0 also has the whole model, for validation."""

    def distribute(self) -> None:
        """See PyTorchTrainer."""
        context = self.context
        self.transport = join(context)
        torch.manual_seed(
            context.spec["seed"] + context.rank
        )  # of dropout: parts of a layer drop other elements
        layout = lay_out(context.graph, context.spec["local_batch"], from_json(context.spec["strategy"]))
        weights = tensors(self.module, self.graph)
        self.carries = carrier(self.transport)
        self.runner = Runner(
            self.graph, layout, context.rank, self.torch_device, weights, context.phases, self.carries
        )
        self.optimizer = optimizer_of(self.runner.parameters(), context.levels, context.learning_rate(0))
        if context.rank:
            self.module = self.model = nn.Module()

    def train_epoch(self, epoch: int, meter: Meter) -> Seen:
        """See Trainer. What ranks saw of the last layer's parts is summed at the end."""
        spec, phases = self.context.spec, self.context.phases
        seen = torch.zeros(2, dtype=torch.float64, device=self.torch_device)
        batches = self._batches(epoch)
        for shard in self.runner.tasks:
            shard.part.training = True
        for length in self.context.accumulation_groups:
            for i in range(length):
                phases.step()
                phases.enter("data")
                samples, labels = next(batches)
                loss, met = self.runner.forward(samples, labels)
                self.runner.backward(1 / length, last=i == length - 1)
                phases.enter("metrics")
                seen += torch.stack([loss.double() * spec["local_batch"], met.double()])
                if i == length - 1:
                    phases.enter("optimizer")
                    self._step()
                if meter.wants_steps:
                    synchronize(self.torch_device)
                    meter.step()
        if self.context.ranks > 1:
            dist.all_reduce(seen)
        synchronize(self.torch_device)
        return Seen(seen[0].item(), int(seen[1]), spec["steps"] * spec["local_batch"])

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Return an iterator over batches: the samples that this rank reads, and all labels."""
        own = slice(*self.runner.sample_range)
        return self._ready((samples[own], labels) for samples, labels in self.context.epoch(epoch))

    def validate(self) -> Seen:
        """Validate on rank 0, the only one that counts, with all weights."""
        self._gather()
        return super().validate() if self.context.rank == 0 else Seen(0.0, 0, 0)

    @torch.no_grad()
    def _gather(self) -> None:
        """Gather all weights in rank 0's module: shards from the first rank that has them.

        Of running statistics, the mean over all ranks that have them.
        """
        layout, me = self.runner.layout, self.context.rank
        weights = tensors(self.module, self.graph) if me == 0 else {}
        for layer, definition in enumerate(layout.space.layers):
            for name in names_of(definition, self.graph) if definition.shared is None else ():
                for number in range(shards := layout.shards(layer)):
                    holders = layout.holders(layer, number)
                    senders = holders[:1] if is_trained(name) else holders
                    own = self.runner.shards.get((layer, number))
                    mine = own.weight(name).cpu() if own and me in senders else None
                    if me == 0:
                        into = share(name, weights[name], number, shards)
                        into.copy_(torch.stack([self._from(rank, mine, into) for rank in senders]).mean(0))
                    elif mine is not None:
                        dist.send(mine.contiguous(), 0, group=self.carries)

    def _from(self, rank: int, mine: Tensor | None, like: Tensor) -> Tensor:
        """Return rank 0's own tensor, or the one that it receives."""
        if rank == 0 and mine is not None:
            return mine
        room = torch.empty(like.shape)
        dist.recv(room, rank, group=self.carries)
        return room

    def weights(self) -> dict[str, np.ndarray]:
        """See Trainer."""
        self._gather()
        own = super().weights() if self.context.rank == 0 else {}
        arrays = {}
        for name, shape in self.graph.weights().items():
            value = torch.from_numpy(own[name]) if own else torch.empty(shape)
            dist.broadcast(value, 0, group=self.carries)
            arrays[name] = value.numpy()
        return arrays

    def weights_finite(self) -> bool:
        """See Trainer: of the shares that this rank has."""
        own = [
            tensor
            for shard in self.runner.shards.values()
            for tensor in (*shard.parameters(), *shard.buffers())
        ]
        return all(bool(tensor.isfinite().all()) for tensor in own)


def optimizer_of(
    parameters: Mapping[str, Sequence[nn.Parameter]], levels: dict[str, Any], rate: float
) -> torch.optim.Optimizer:
    """Return the optimizer of a rank's shards of weights, like PyTorchTrainer's; there may be none."""
    groups_by_decay = {
        decayed: [
            parameter
            for name, parameters_of_name in parameters.items()
            if is_decayed(name) == decayed
            for parameter in parameters_of_name
        ]
        for decayed in (True, False)
    }
    none = [torch.zeros(0, requires_grad=True)]
    groups = [
        {"params": groups_by_decay[True], "weight_decay": levels["weight_decay"]},
        {"params": groups_by_decay[False] + none},
    ]
    if levels["optimizer"] == "adam":
        return torch.optim.Adam(groups, rate, **ADAM)
    return torch.optim.SGD(groups, rate, momentum=levels["momentum"])
