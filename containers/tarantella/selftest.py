"""One of two ranks that train a tiny Keras model with Tarantella on loopback, without ssh.

environments.two_ranks starts two of these programs.
"""

import json
import os
import time
from pathlib import Path

RANK, SIZE = int(os.environ["RINGSIDE_RANK"]), int(os.environ["RINGSIDE_SIZE"])
MEETING = Path(os.environ["RINGSIDE_MEETING"])


def place() -> dict[str, str]:
    """Return what tells GASPI its ranks; the file of hosts has one line for each rank."""
    hosts = MEETING / "hosts"
    if RANK == 0:
        partial = MEETING / "hosts.partial"
        partial.write_text("localhost\n" * SIZE)
        partial.rename(hosts)
    while not hosts.is_file():  # the self-test's time limit ends a wait for nothing
        time.sleep(0.05)
    return {
        "GASPI_RANK": str(RANK),
        "GASPI_NRANKS": str(SIZE),
        "GASPI_SOCKET": str(RANK),
        "GASPI_MFILE": str(hosts),
        "TNT_GPUS_PER_NODE": "0",
    }


def main() -> None:
    """Train for one epoch, and write the result."""
    os.environ.update(place())
    import numpy as np
    import tarantella as tnt
    import tensorflow as tf

    keras = tf.keras
    made = keras.Sequential([keras.Input(shape=(4,)), keras.layers.Dense(2)])
    model = tnt.Model(made)
    optimizers = getattr(keras.optimizers, "legacy", keras.optimizers)  # Tarantella knows no others
    model.compile(
        optimizer=optimizers.SGD(0.01), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    samples = np.zeros((32, 4), np.float32), np.zeros(32, np.int32)
    data = tf.data.Dataset.from_tensor_slices(samples).batch(16)
    losses = model.fit(data, epochs=1, verbose=0).history["loss"]
    if not np.isfinite(losses).all():
        raise SystemExit(f"the loss is {losses}")
    found = {"framework": f"tensorflow {tf.__version__}", "ranks": tnt.get_size(), "loss": float(losses[0])}
    (MEETING / f"rank{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
