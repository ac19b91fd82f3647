"""Count the floating point operations of one training sample, in the forward and the backward pass.

Two operations for each multiply-accumulate of convolutions, matrix products and attention (`Operator.macs`);
normalization, activation functions, pooling and the optimizer are left out, as in Narayanan et al., SC'21.
The backward pass has as many products for the gradients of weights as the forward pass, and as many for the
gradients of inputs, except where no weight lies upstream. Causal attention counts as if every position
attended to all, as in Chowdhery et al., arXiv:2204.02311, appendix B.
"""

import math
from dataclasses import dataclass

from models.graph import Graph, Operator, is_trained

FLOPS_PER_MAC = 2
# Forward pass 2, backward pass 4 (Kaplan et al., arXiv:2001.08361, section 2.1).
FLOPS_PER_PARAMETER_AND_TOKEN = 6


@dataclass(frozen=True)
class Operations:
    """Floating point operations of one sample.

    Attributes:
        forward: Of the forward pass.
        backward: Of the backward pass.
    """

    forward: float
    backward: float

    @property
    def model(self) -> float:
        """Operations that the model needs however it is trained, the numerator of MFU."""
        return self.forward + self.backward


def training_operations(graph: Graph) -> Operations:
    """Return the operations of one sample."""
    has_gradient: set[str] = set()
    n_forward = n_backward = 0
    for operator in graph.operators:
        n_forward += operator.macs
        n_backward += 2 * operator.macs - _absent_macs(graph, operator, has_gradient)
        if not has_gradient.isdisjoint(operator.inputs) or any(map(is_trained, operator.weights)):
            has_gradient.add(operator.name)
    return Operations(float(FLOPS_PER_MAC * n_forward), float(FLOPS_PER_MAC * n_backward))


def parameter_operations(parameters: float, tokens: float) -> Operations:
    """Return the operations of a sample of `tokens` tokens by the rule 6 x parameters x tokens.

    Products of attention without a parameter are left out.
    """
    total = FLOPS_PER_PARAMETER_AND_TOKEN * parameters * tokens
    return Operations(total / 3, 2 * total / 3)


def _absent_macs(graph: Graph, operator: Operator, has_gradient: set[str]) -> int:
    """Return the products for gradients of those inputs that have none, such as the first layer's images."""
    if operator.kind == "attention":
        inputs = {"query": operator.inputs[0], "key": operator.inputs[-1], "value": operator.inputs[-1]}
        return sum(
            graph.by_name[x].shape[0] * math.prod(operator.weights[f"{part}_kernel"])
            for part, x in inputs.items()
            if x not in has_gradient
        )
    if not operator.macs or operator.inputs[0] in has_gradient:
        return 0
    if operator.kind == "lstm":  # the gradients of its own earlier outputs are needed
        return operator.shape[0] * math.prod(operator.weights["kernel"])
    return operator.macs
