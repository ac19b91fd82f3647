"""PyTorch modules for operators that PyTorch lacks or computes differently."""

import torch
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


def log_counts(x: torch.Tensor) -> torch.Tensor:
    """Return log(1 + count) of integers."""
    return torch.log1p(x.to(torch.get_default_dtype()))


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
