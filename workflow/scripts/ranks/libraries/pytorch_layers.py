"""PyTorch modules for operators that PyTorch lacks or computes differently."""

import torch
from torch import nn
from torch.nn.attention import SDPBackend


class Positions(nn.Module):
    """A sequence [N, length, units] plus a learned vector for each position."""

    def __init__(self, length: int, units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x + self.weight


class ClassToken(nn.Module):
    """A learned vector before a sequence [N, length, units]."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return torch.cat([self.weight.to(x.dtype).expand(len(x), 1, -1), x], 1)


def attention_kernel(
    head_size: int, length: int, memory_length: int, causal: bool, dtype: torch.dtype, device: torch.device
) -> str:
    """Return the kernel of scaled_dot_product_attention in training: `unfused`, or PyTorch's name of it."""
    query, memory = (
        torch.empty(1, 1, positions, head_size, dtype=dtype, device=device, requires_grad=True)
        for positions in (length, memory_length)
    )
    choice = SDPBackend(torch._fused_sdp_choice(query, memory, memory, None, 0.0, causal))
    return "unfused" if choice == SDPBackend.MATH else choice.name.lower().replace("_", " ")


class Attention(nn.Module):
    """Multi-head attention of sequences [N, length, units].

    Its four linear layers may have only some of the heads.
    """

    def __init__(self, units: int, memory_units: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.head_size, self.causal = units // heads, causal
        self.query = nn.Linear(units, units)
        self.key = nn.Linear(memory_units, units)
        self.value = nn.Linear(memory_units, units)
        self.output = nn.Linear(units, units)

    def forward(self, x: torch.Tensor, to: torch.Tensor | None = None) -> torch.Tensor:
        """Return the attention of each position of `x` to all of `to`, by default `x` (Builder.attention)."""
        to = x if to is None else to
        query, key, value = self._heads(self.query(x)), self._heads(self.key(to)), self._heads(self.value(to))
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
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
