"""PyTorch modules for operators that PyTorch lacks or computes differently."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention as attend

from models.graph import BYTES, Operator


class Positions(nn.Module):
    """A sequence [N, length, units] plus a learned vector for each position."""

    def __init__(self, length: int, units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x + self.weight


class AddVector(nn.Module):
    """Vectors [..., units] plus a learned one."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x + self.vector


class ClassToken(nn.Module):
    """A learned vector before a sequence [N, length, units]."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return torch.cat([self.weight.to(x.dtype).expand(len(x), 1, -1), x], 1)


def gather_positions(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the positions [N, count] of sequences [N, length, units]."""
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))


def log_counts(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Return log(1 + count) of integers, in the type of a weight that multiplies them."""
    logarithms = torch.log1p(x.to(torch.get_default_dtype()))
    return logarithms if weight is None else logarithms.to(weight.dtype)


def join_products(x: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return vectors [N, units], and products of pairs among them and [N, count, units]."""
    joined = torch.cat([x[:, None], vectors], 1)
    rows, columns = torch.tril_indices(joined.shape[1], joined.shape[1], -1, device=x.device)
    return torch.cat([x, torch.bmm(joined, joined.transpose(1, 2))[:, rows, columns]], 1)


def rotated(x: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of units of [N, heads, length, units] by the cosines and sines of models.initial."""
    cosines, sines = tables
    first, second = (x.float() if x.itemsize < BYTES else x).chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1).to(x.dtype)


def attention_kernel(operator: Operator, memory_length: int, dtype: torch.dtype, device: torch.device) -> str:
    """Return the kernel of scaled_dot_product_attention in training: `unfused`, or PyTorch's name of it."""
    query, memory = (
        torch.empty(1, heads, positions, operator.head_size, dtype=dtype, device=device, requires_grad=True)
        for heads, positions in ((operator["heads"], operator.shape[0]), (operator.key_heads, memory_length))
    )
    is_grouped = operator.key_heads != operator["heads"]
    arguments = (query, memory, memory, None, 0.0, operator["causal"])
    choice = SDPBackend(torch._fused_sdp_choice(*arguments, enable_gqa=is_grouped))
    return "unfused" if choice == SDPBackend.MATH else choice.name.lower().replace("_", " ")


class Attention(nn.Module):
    """Multi-head attention of sequences [N, length, units].

    Its four linear layers may have only some of the heads.
    """

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.head_size, self.causal = operator.head_size, operator["causal"]
        self.is_grouped = operator.key_heads != operator["heads"]
        has_bias = "output_bias" in operator.weights
        self.query, self.key, self.value, self.output = (
            nn.Linear(*operator.weights[f"{part}_kernel"], bias=has_bias)
            for part in ("query", "key", "value", "output")
        )

    def forward(
        self, x: torch.Tensor, to: torch.Tensor | None = None, *, rotary: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the attention of each position of `x` to all of `to`, by default `x` (Builder.attention).

        `rotary` are the cosines and sines of rotary positions (models.initial).
        """
        to = x if to is None else to
        query, key, value = self._heads(self.query(x)), self._heads(self.key(to)), self._heads(self.value(to))
        if rotary is not None:
            query, key = rotated(query, rotary), rotated(key, rotary)
        attended = attend(query, key, value, is_causal=self.causal, enable_gqa=self.is_grouped)
        return self.output(attended.transpose(1, 2).flatten(2))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


class AuxiliaryLoss(torch.autograd.Function):
    """An output that adds a loss to the model's: in the backward pass, the loss has the gradient `share`."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, _loss: torch.Tensor, share: float) -> torch.Tensor:
        """Return the output."""
        ctx.share = share
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return the gradients of output, loss and share."""
        (gradient,) = gradients
        return gradient, gradient.new_full((), ctx.share, dtype=torch.float32), None


class AllToAll(torch.autograd.Function):
    """Send an equal share of the first axis to each rank of a group; gradients return the same way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """Return the shares received, in the order of ranks."""
        ctx.group = group
        received = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, x.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient of `x`."""
        (gradient,) = gradients
        received = torch.empty_like(gradient, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, gradient.contiguous(), group=ctx.group)
        return received, None


class FeedForwards(nn.Module):
    """Gated feed-forward networks of experts, all of them or those of this rank.

    Attributes:
        group: Ranks that have different experts and send each other positions, None if this one has all.
    """

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.group: dist.ProcessGroup | None = None
        self.gate, self.up, self.down = (
            nn.Parameter(torch.empty(operator.weights[f"{part}_kernel"])) for part in ("gate", "up", "down")
        )

    def divide(self, group: dist.ProcessGroup) -> None:
        """Keep this rank's experts."""
        self.group = group
        for name, weight in list(self.named_parameters()):
            rank_experts = weight.detach().chunk(group.size())[group.rank()]
            setattr(self, name, nn.Parameter(rank_experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs [experts, positions, units] of all experts for their positions."""
        if self.group is None:
            return self._computed(x)
        n_positions, n_ranks = x.shape[1], self.group.size()
        if not self.training:  # Ranks may have different numbers of samples.
            longest = torch.tensor([n_positions], device=x.device)
            dist.all_reduce(longest, dist.ReduceOp.MAX, self.group)
            x = nn.functional.pad(x, (0, 0, 0, int(longest) - n_positions))
        # From [ranks, own experts, positions, units], with the positions of each rank.
        received = AllToAll.apply(x, self.group).unflatten(0, (n_ranks, -1)).transpose(0, 1)
        computed = self._computed(received.flatten(1, 2)).unflatten(1, (n_ranks, -1)).transpose(0, 1)
        returned: torch.Tensor = AllToAll.apply(computed.flatten(0, 1), self.group)
        return returned[:, :n_positions]

    def _computed(self, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = (weight.to(x.dtype) for weight in (self.gate, self.up, self.down))
        return torch.bmm(nn.functional.silu(torch.bmm(x, gate)) * torch.bmm(x, up), down)


class Experts(nn.Module):
    """A mixture of experts for sequences [N, length, units] (Builder.experts).

    Choices are copied to slots: `capacity` for each expert and sample, and a last one for what is dropped.

    Attributes:
        batch_share: The share of a batch that its samples are, less than 1 of microbatches.
        loss_share: The share of its auxiliary loss that counts, 1 over the batches of an optimizer step.
    """

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.top, self.capacity, self.balance = operator["top"], operator["capacity"], operator["balance"]
        self.batch_share = self.loss_share = 1.0
        self.router = nn.Parameter(torch.empty(operator.weights["router_kernel"][::-1]))
        self.feed_forwards = FeedForwards(operator)
        self.register_buffer("load", torch.zeros(operator.weights["load"]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the outputs of each position's experts, without those that dropped it."""
        with torch.autocast(x.device.type, enabled=False):  # The router computes in float32.
            logits = nn.functional.linear(x.float(), self.router.float())
        scores, chosen = logits.topk(self.top)
        slots, choices, is_kept = self._slots(chosen.flatten(1), logits.shape[-1])
        copies = x.flatten(0, 1).repeat_interleave(self.top, 0)
        n_slots = choices.shape[-1] * len(x) * self.capacity
        inputs = x.new_zeros(n_slots + 1, x.shape[-1]).index_copy(0, slots, copies)
        outputs = self.feed_forwards(inputs[:-1].unflatten(0, (choices.shape[-1], -1))).flatten(0, 1)
        outputs = nn.functional.pad(outputs, (0, 0, 0, 1)).index_select(0, slots)
        weights = scores.softmax(-1).to(outputs.dtype).unsqueeze(-1)
        output = (outputs.view(*scores.shape, -1) * weights).sum(2)
        if not self.training:
            return output
        self._count(choices, is_kept)
        shares, probabilities = choices.float().mean(1), logits.softmax(-1).mean(1)
        loss = self.balance * choices.shape[-1] * (shares * probabilities).sum(-1).mean()
        return AuxiliaryLoss.apply(output, loss, self.batch_share * self.loss_share)

    def _slots(self, chosen: torch.Tensor, n_experts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the slot of each choice, of all samples in a row, from the experts chosen [N, choices].

        With them come the choices one-hot [N, choices, experts], and which are not dropped [N, choices].
        """
        choices = nn.functional.one_hot(chosen, n_experts)
        places = choices.cumsum(1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1) - 1
        is_kept = places < self.capacity
        samples = torch.arange(len(chosen), device=chosen.device).unsqueeze(-1)
        slots = (chosen * len(chosen) + samples) * self.capacity + places
        return slots.where(is_kept, n_experts * len(chosen) * self.capacity).flatten(), choices, is_kept

    @torch.no_grad()
    def _count(self, choices: torch.Tensor, is_kept: torch.Tensor) -> None:
        loads = (choices * is_kept.unsqueeze(-1)).float().mean((0, 1))
        self.load += self.batch_share * torch.cat([loads, 1 - loads.sum(0, keepdim=True)])


class LSTM(nn.LSTM):
    """An LSTM of one layer for sequences [N, length, units], with one bias.

    PyTorch's second bias stays 0 and is no parameter.
    """

    bias_hh_l0: torch.Tensor | None

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__(inputs, units, batch_first=True)
        del self.bias_hh_l0
        self.register_buffer("bias_hh_l0", None)
        # The assignment also puts it into the list of weights that cuDNN gets.
        self.bias_hh_l0 = torch.zeros(4 * units)

    def forward(
        self, x: torch.Tensor, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs at all positions, and the final state [N, 2, units]: hidden, cell.

        The initial state is `state`, or zeros.
        """
        begin = None if state is None else tuple(state.transpose(0, 1).contiguous().split(1))
        outputs, (hidden, cell) = super().forward(x, begin)
        return outputs, torch.cat([hidden, cell]).transpose(0, 1)


def scale_auxiliary_losses(module: nn.Module, n_batches: int) -> None:
    """Scale the auxiliary losses of experts for gradients that are means over `n_batches` batches."""
    for layer in module.modules():
        if isinstance(layer, Experts):
            layer.loss_share = 1 / n_batches
