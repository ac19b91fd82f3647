"""What the bare TensorFlow loops share: the data, the model and the epochs, on one core a rank.

Their arguments are DATA BATCH EPOCHS. Each rank prints one line of JSON with the seconds of every epoch.
"""

import json
import sys
import time

import numpy as np
import tensorflow as tf

keras = tf.keras


def limit_threads():
    """One thread."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def small_cnn():
    """For images of 8 x 8 pixels."""
    return keras.Sequential([
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10),
    ])  # fmt: skip


def sgd():
    return keras.optimizers.legacy.SGD(0.05, momentum=0.9)


def endless_batches(rank=0, ranks=1):
    """The batches of a rank, for ever, as a dataset; and the steps of an epoch."""
    data, batch = sys.argv[1], int(sys.argv[2])
    images = np.load(f"{data}/train/images.npy").astype(np.float32)
    images = tf.constant((images - images.mean()) / images.std())
    labels = tf.constant(np.load(f"{data}/train/labels.npy"))
    order = tf.data.Dataset.range(len(labels)).shard(ranks, rank).shuffle(len(labels)).repeat()
    order = order.batch(batch, drop_remainder=True)
    dataset = order.map(lambda i: (tf.gather(images, i), tf.gather(labels, i))).prefetch(tf.data.AUTOTUNE)
    return dataset, len(labels) // (batch * ranks)


def step_of(model, optimizer, make_tape=lambda tape: tape):
    """The training step on a batch of an iterator; it returns the loss and the number of right answers."""

    @tf.function
    def train_step(iterator):
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        gradients = make_tape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, tf.math.count_nonzero(tf.argmax(logits, 1) == y)

    return train_step


def train(model, train_step, batches, steps, rank=0, barrier=lambda: None):
    """Train all epochs, each from a barrier on, and print the line of this rank."""
    batch, epochs = int(sys.argv[2]), int(sys.argv[3])
    epoch_times_s = []
    for _ in range(epochs):
        barrier()
        started = time.perf_counter()
        seen = [train_step(batches) for _ in range(steps)]
        samples = steps * batch
        train_loss = sum(float(loss) for loss, _ in seen) / steps
        train_accuracy = sum(int(correct) for _, correct in seen) / samples
        epoch_times_s.append(time.perf_counter() - started)
    print(json.dumps({
        "rank": rank, "epoch_times_s": epoch_times_s, "samples": samples,
        "parameters": model.count_params(), "train_loss": train_loss, "train_accuracy": train_accuracy,
    }))  # fmt: skip
