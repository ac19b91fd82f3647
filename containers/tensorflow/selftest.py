"""One of two ranks that import TensorFlow and add up a vector on loopback (see environments.two_ranks)."""

import json
import os
from pathlib import Path
from types import ModuleType

RANK, SIZE = int(os.environ["RINGSIDE_RANK"]), int(os.environ["RINGSIDE_SIZE"])
WORKERS = [f"127.0.0.1:{port}" for port in os.environ["RINGSIDE_PORTS"].split(",")]


def keras_version(keras: ModuleType) -> str:
    """Return the version of tf.keras, which has to be Keras 2: since TensorFlow 2.16 the package tf-keras."""
    try:
        import tf_keras
    except ModuleNotFoundError:
        version = str(keras.__version__)
        is_second = version.startswith("2.")
    else:
        version = str(tf_keras.__version__)
        is_second = keras.Model is tf_keras.Model
    if not is_second:
        raise SystemExit(
            "tf.keras is not Keras 2; it needs the package tf-keras, and the variable TF_USE_LEGACY_KERAS=1"
        )
    return version


def main() -> None:
    """Add up the ranks' vectors and write the result."""
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": WORKERS}, "task": {"type": "worker", "index": RANK}}
    )
    import tensorflow as tf

    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    @tf.function
    def total() -> tf.Tensor:
        vectors = strategy.run(lambda: tf.fill([1000], RANK + 1.0))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, vectors, axis=None)

    vector = total().numpy()
    expected = SIZE * (SIZE + 1) / 2
    if not (vector == expected).all():
        raise SystemExit(f"all_reduce gave {vector[0]}, expected {expected}")
    result = {
        "framework": f"tensorflow {tf.__version__}",
        "keras": keras_version(tf.keras),
        "all_reduce": float(vector[0]),
    }
    (Path(os.environ["RINGSIDE_MEETING"]) / f"rank{RANK}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
