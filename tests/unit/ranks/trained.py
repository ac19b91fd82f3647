"""Train as the worker does, in a framework's environment, and keep weights and the samples seen."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ranks.worker.__main__ import run
from ranks.worker.process import as_rank
from ranks.worker.trainer import Trainer

seen: list[np.ndarray] = []


def keep(images: np.ndarray) -> np.ndarray:
    seen.append(np.array(images))
    return np.zeros((), np.int32)


class Spy:
    """Replace a trainer's `_normalized`, through which every batch passes, and keep its inputs."""

    def __init__(self, trainer: Any) -> None:
        self.inner, trainer._normalized = trainer._normalized, self

    def __call__(self, images: Any) -> Any:
        if isinstance(images, np.ndarray) or "torch" in sys.modules:
            keep(images)
        elif (tensorflow := sys.modules.get("tensorflow")) is not None:
            with tensorflow.control_dependencies(
                [tensorflow.numpy_function(keep, [images], tensorflow.int32)]
            ):
                images = tensorflow.identity(images)
        return self.inner(images)


def keep_inputs(epoch: Any) -> Any:
    """Return a function that yields a context's batches and keeps their inputs."""

    def batches(number: int) -> Any:
        for inputs, labels in epoch(number):
            keep(inputs)
            yield inputs, labels

    return batches


def spied(make: Any) -> Any:
    """Return an `evaluate` of trainers that forgets the inputs of validation."""

    def evaluate(self: Any) -> Any:
        trained = len(seen)
        done = make(self)
        del seen[trained:]
        return done

    return evaluate


def noise(trainer: Any) -> np.ndarray:
    """Return logits of the same samples, computed twice as in training, with dropout."""
    of_tokens = trainer.context.graph.vocabulary is not None
    samples = np.ones((4, *trainer.context.graph.shape), np.int64 if of_tokens else np.float32)
    if (torch := sys.modules.get("torch")) is not None:
        trainer.module.train()
        inputs = torch.from_numpy(samples if of_tokens else samples.transpose(0, 3, 1, 2))
        inputs = inputs if of_tokens else inputs.to(trainer.weight_dtype)
        logits_of_draws = [trainer.predict(inputs).detach().float().numpy() for _ in range(2)]
    elif "ranks.libraries.jax.trainer" in sys.modules:  # TensorFlow 2.12 imports jax, too
        import jax

        from ranks.libraries.jax.model import forward

        weights, rank = trainer.weights(), trainer.context.rank
        keys = [trainer.key_of(jax.numpy.uint32(rank), jax.numpy.uint32(number)) for number in range(2)]
        logits_of_draws = [
            np.asarray(forward(trainer.context.graph, weights, samples, key)[0]) for key in keys
        ]
    else:
        run = trainer.strategy.run
        values = [run(lambda: trainer.model(samples, training=True)) for _ in range(2)]
        logits_of_draws = [trainer.strategy.experimental_local_results(value)[0].numpy() for value in values]
    return np.stack(logits_of_draws)


def count_messages(library: Any) -> Counter[str]:
    """Count the bytes of FSDP's whole messages, not of their shards, by collective and type."""
    counts: Counter[str] = Counter()

    def counted(name: str, collective: Any) -> Any:
        def called(*args: Any, **named: Any) -> Any:
            messages = (arg for arg in (*args, *named.values()) if hasattr(arg, "nbytes"))
            largest = max(messages, key=lambda message: message.nbytes)
            counts[f"{name} {largest.dtype}"] += largest.nbytes
            return collective(*args, **named)

        return called

    for name in library.FSDP_COLLECTIVES:
        if hasattr(library.dist, name):
            setattr(library.dist, name, counted(name, getattr(library.dist, name)))
    return counts


def train(folder: Path) -> None:
    sharded = sys.modules.get("ranks.libraries.pytorch_sharded")
    counts = count_messages(sharded) if sharded else None
    Trainer.evaluate = spied(Trainer.evaluate)  # type: ignore[method-assign]
    begun = Trainer.__init__

    def init(self: Any, context: Any) -> None:
        begun(self, context)
        # Their steps can call nothing where they are partitioned.
        if "ranks.libraries.jax.trainer" in sys.modules:
            context.epoch = keep_inputs(context.epoch)
        else:
            Spy(self)

    Trainer.__init__ = init  # type: ignore[method-assign]
    trainer = run(folder)
    rank = trainer.context.rank
    np.save(folder / f"seen.{rank}.npy", np.concatenate(seen))
    if counts is not None:
        (folder / f"messages.{rank}.json").write_text(json.dumps(counts))
    after = trainer.weights()
    if rank == 0:
        np.savez(folder / "before.npz", **trainer.context.initial_weights())
        np.savez(folder / "after.npz", **after)
    of_all = (
        getattr(trainer, "graph", trainer.context.graph) is trainer.context.graph
    )  # not a stage of a pipeline
    if of_all and not hasattr(trainer, "runner"):  # nor parts of layers
        np.save(folder / f"noise.{rank}.npy", noise(trainer))  # last, since it changes running statistics
    trainer.context.group.barrier()


if __name__ == "__main__":
    as_rank(train)
