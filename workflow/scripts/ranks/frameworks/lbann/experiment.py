"""Write LBANN's experiment for one run: the file that it reads, and the data and weights that the file names.

LBANN shuffles samples itself, also trains a shorter last step, and needs the global batch size. The model
normalizes pixels, as in other frameworks. If tokens are drawn, every epoch has the tokens of the first one.
The fields are defined in LBANN's src/proto/*.proto.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ranks.frameworks.lbann.layers import model, save, save_normalization
from ranks.frameworks.lbann.prototext import Message, text
from ranks.worker.batches import Batch, Noise, Prepared, split_of
from ranks.worker.context import Context

FILE = "experiment.prototext"
SEED_RANGE = 2**31 - 1  # values of LBANN's random_seed
ROLES = {"train": "train", "validation": "validate"}  # our splits -> LBANN's readers


def write(context: Context, folder: Path) -> Path:
    """Write all files that LBANN reads to the empty `folder`, and return the experiment's file."""
    graph, levels, weights = context.graph, context.levels, folder / "weights"
    weights.mkdir()
    save(context.initial_weights(), graph, weights)
    if graph.vocabulary is None:
        save_normalization(context.manifest["mean"], context.manifest["std"], weights)
    message = {
        "data_reader": {"reader": [_reader(context, split, folder) for split in ROLES]},
        "model": {
            **model(
                graph,
                weights,
                device=context.spec["device"],
                weight_decay=levels["weight_decay"],
                normalized=graph.vocabulary is not None or bool(context.manifest.get("fresh")),
                parallelism=levels["parallelism"],
            ),
            "num_epochs": levels["epochs"],
            "callback": [{"print_model_description": {}}, {"print": {}}, {"timer": {}}, *_timeline(context)],
        },
        "optimizer": optimizer(levels, context.learning_rate(0)),
        "trainer": {
            "mini_batch_size": context.spec["local_batch"] * context.spec["replicas"],
            "random_seed": 1 + context.spec["seed"] % SEED_RANGE,
        },
    }
    file = folder / FILE
    file.write_text(text(message))
    return file


def _timeline(context: Context) -> list[Message]:
    """Return the callback that records the times of layers in a traced run, in the attempt's folder."""
    return [{"timeline": {"directory": str(context.folder)}}] if context.levels["trace"] != "none" else []


def optimizer(levels: dict[str, Any], rate: float) -> Message:
    """Return the experiment's optimizer; proto3 has no defaults, so omitted fields are 0."""
    if levels["optimizer"] == "adam":
        betas = {f"beta{i}": levels[f"adam_beta{i}"] for i in (1, 2)}
        return {"adam": {"learn_rate": rate, **betas, "eps": levels["adam_epsilon"]}}
    return {"sgd": {"learn_rate": rate, "momentum": levels["momentum"]}}


def _reader(context: Context, split: str, folder: Path) -> Message:
    """Return the reader of a split, after writing its data to `folder`; LBANN generates noise itself."""
    role = {"role": ROLES[split], "shuffle": split == "train", "fraction_of_data_to_use": 1.0}
    samples = split_of(Path(context.rank_input["data"]), split, context.manifest, context.spec["seed"])
    if isinstance(samples, Noise):
        height, width, channels = context.graph.shape
        noise = {"num_samples": len(samples), "synth_dimensions": f"{channels} {height} {width}"}
        return {"name": "synthetic", **role, **noise, "num_labels": len(context.manifest["classes"])}
    drawn = int(split == "train"), slice(0, len(samples)), np.arange(len(samples))
    inputs, labels = (
        (samples.inputs, samples.labels) if isinstance(samples, Prepared) else samples.read(*drawn)
    )
    inputs, labels = (
        _tokens(inputs, labels, context) if inputs.ndim == 2 else (np.moveaxis(inputs, -1, 1), labels)
    )
    file = folder / f"{split}.npz"
    # The smallest data type that LBANN reads and that holds all values.
    dtype = np.int16 if (context.graph.vocabulary or 256) <= 2**15 else np.float32
    np.savez(file, data=np.ascontiguousarray(inputs, dtype), labels=labels.astype(np.int32))
    values = {"scaling_factor_int16": 1.0, "disable_responses": True}
    return {"name": "numpy_npz", **role, "data_filename": str(file), **values}


def _tokens(tokens: np.ndarray, labels: np.ndarray, context: Context) -> Batch:
    """Return tokens and labels as LBANN reads them.

    LBANN has one label per sample, so labels of positions are appended to the tokens.
    """
    if labels.ndim == 1:
        return tokens, labels
    return np.concatenate([tokens, labels[:, -context.positions :]], axis=1), np.zeros(len(tokens), np.int64)
