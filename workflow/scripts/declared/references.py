"""Read and check published measurements to compare with, config/references/NAME.yaml."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from common.files import CHECKOUT
from common.keys import Keys, Line, Maybe, ParsedFrom, Rules, key, load, optional
from declared.configuration import unknown_name_error

FOLDER = CHECKOUT / "config" / "references"
Positive = Annotated[float, Rules(gt=0, exact=True)]
Names = Annotated[
    tuple[str, ...],
    ParsedFrom(
        Line | Annotated[list[Line], Rules(min_length=1)],
        lambda names: (names,) if isinstance(names, str) else tuple(names),
    ),
]


@dataclass(frozen=True, kw_only=True)
class PublishedCell(Keys):
    """An entry of the key `rows`: a published throughput, and the training that reached it."""

    model: Names = key("name of the model in a campaign, or a list of names that mean this model")
    precision: Literal["fp32", "tf32", "amp", "fp8"] = key(
        "arithmetic of the training step; amp: 16-bit mixed precision"
    )
    device: Line = key("words in the name of the device, such as V100 16GB")
    nodes: int = key("number of nodes", ge=1)
    devices_per_node: int = key("devices of each node that train", ge=1)
    global_batch: int = key("samples of an optimizer step, over all devices", ge=1)
    batch_size: Maybe[Positive] = optional("samples of a replica in one micro-batch")
    sequence_length: Maybe[int] = optional("tokens of a sample", ge=1)
    samples_s: Positive = key("training samples per second on all devices together")
    runs: int = key("number of runs that the throughput is a mean of", default=1, ge=1)
    cv: Maybe[float] = optional("standard deviation of these runs over their mean", ge=0, lt=1)
    framework: Maybe[Line] = optional("framework that trained")
    note: Maybe[Line] = optional("further facts, such as a compiler or who measured")


@dataclass(frozen=True, kw_only=True)
class Reference(Keys):
    """The keys of config/references/NAME.yaml."""

    title: Line = key("title of the measurements")
    source: Line = key("who measured and where the measurements are published, with commit or date")
    licence: Line = key("licence of the measurements, an SPDX identifier such as Apache-2.0")
    url: Maybe[Line] = optional("address of the source")
    note: Maybe[Line] = optional("what readers should know about all rows; tables repeat it")
    rows: tuple[PublishedCell, ...] = key("the published cells", min_length=1)


def reference_names(folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the names of all references."""
    return tuple(sorted(file.stem for file in folder.glob("*.yaml")))


def load_reference(name: str, folder: Path = FOLDER) -> Reference:
    """Read and check config/references/NAME.yaml.

    Raises:
        InputError: If there is no such file, or it is wrong.
    """
    file = folder / f"{name}.yaml"
    if name not in (names := reference_names(folder)):
        raise unknown_name_error(name, "--reference", "", names)
    return load(Reference, file)
