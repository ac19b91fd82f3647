"""Measure samples per second of a rank's input alone and of its training, in a framework's environment."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ranks.worker.context import from_environment
from ranks.worker.process import adapter_of, as_rank

LEAST_S = 3.0


class NoMeter:
    """A meter that does not record steps."""

    wants_steps = False


def rate(samples: int, step: Callable[[], Any]) -> float:
    """Return samples/s of `step`, which reads `samples`, over at least LEAST_S after one warm-up call."""
    step()
    done, started = 0, time.perf_counter()
    while done == 0 or time.perf_counter() - started < LEAST_S:
        step()
        done += samples
    return done / (time.perf_counter() - started)


def input_of(trainer: Any, epochs: int) -> Iterator[Any]:
    """Yield the batches of `epochs` epochs, ready for the model."""
    if hasattr(trainer, "_batches"):
        for epoch in range(1, epochs + 1):
            yield from trainer._batches(epoch)
    else:
        import tensorflow as tf

        ready = tf.function(lambda images, labels: (trainer._normalized(images), labels))
        for images, labels in trainer._dataset():
            yield ready(images, labels)


def measure(folder: Path) -> None:
    context = from_environment(folder)
    trainer = adapter_of(context).trainer(context)
    spec = context.spec
    batches = input_of(trainer, 10**6)
    result = {"input_samples_s": rate(spec["local_batch"], lambda: next(batches))}
    if hasattr(trainer, "_dataset"):
        import tensorflow as tf

        data = trainer._dataset()
        trainer._iterator = iter(trainer.strategy.distribute_datasets_from_function(lambda _: data))
        trainer._compiled_batch = tf.function(trainer._train_batch, autograph=False)
    result["training_samples_s"] = rate(
        spec["steps"] * spec["local_batch"], lambda: trainer.train_epoch(1, NoMeter())
    )
    (folder / "rates.json").write_text(json.dumps(result))


if __name__ == "__main__":
    as_rank(measure)
