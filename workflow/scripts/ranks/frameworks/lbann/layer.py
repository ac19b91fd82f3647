"""Layers of LBANN that both layers.py and sequences.py build."""

from collections.abc import Iterable
from typing import Any

from ranks.frameworks.lbann.prototext import Word

Layer = dict[str, Any]

OPERATORS = {"sigmoid": "SigmoidOperator", "tanh": "TanhOperator", "gelu_tanh": "GeluOperator"}


def layer(
    name: str, parents: Iterable[str], kind: str, weights: Iterable[str] = (), **settings: Any
) -> Layer:
    """Return a layer of a kind; its `children` are added when all layers exist."""
    return {"name": name, "parents": list(parents), "children": [], "weights": list(weights), kind: settings}


def activation(name: str, inputs: list[str], function: str, device: str) -> list[Layer]:
    """Return the layers of an elementwise function.

    Raises:
        ValueError: If LBANN lacks it.
    """
    if function == "relu":
        return [layer(name, inputs, "relu")]
    if function == "silu":
        gate = f"{name}.sigmoid"
        return [*activation(gate, inputs, "sigmoid", device), layer(name, [*inputs, gate], "hadamard")]
    if function not in OPERATORS:
        raise ValueError(f"no layer of LBANN is known for the activation {function}")
    parameters = {"type_url": f"type.googleapis.com/lbann_data.{OPERATORS[function]}"}
    place = Word("CPU" if device == "cpu" else "GPU")  # must be that of the layer
    return [layer(name, inputs, "operator_layer", ops={"device_allocation": place, "parameters": parameters})]
