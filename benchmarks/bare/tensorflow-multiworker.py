"""Bare MultiWorkerMirroredStrategy, one core a worker: DATA BATCH EPOCHS; the workers stand in TF_CONFIG."""

import json
import os
import sys
import time

import numpy as np
import tensorflow as tf

keras = tf.keras
data, batch, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
options = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.RING
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
workers = strategy.num_replicas_in_sync
keras.utils.set_random_seed(0)

images = np.load(f"{data}/train/images.npy").astype(np.float32)
images = tf.constant((images - images.mean()) / images.std())
labels = tf.constant(np.load(f"{data}/train/labels.npy"))
steps = len(labels) // (batch * workers)


def batches_of(context):
    """This worker's batches, for ever."""
    order = tf.data.Dataset.range(len(labels)).shard(context.num_input_pipelines, context.input_pipeline_id)
    order = order.shuffle(len(labels)).repeat().batch(batch, drop_remainder=True)
    dataset = order.map(lambda i: (tf.gather(images, i), tf.gather(labels, i))).prefetch(tf.data.AUTOTUNE)
    no_sharding = tf.data.Options()
    no_sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(no_sharding)


batches = iter(strategy.distribute_datasets_from_function(batches_of))

with strategy.scope():
    model = keras.Sequential([
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10),
    ])  # fmt: skip
    optimizer = keras.optimizers.legacy.SGD(0.05, momentum=0.9)


@tf.function
def train_step(iterator):
    def on_replica(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch * workers)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.reduce_mean(losses), tf.math.count_nonzero(tf.argmax(logits, 1) == y)

    return strategy.run(on_replica, args=next(iterator))


epoch_times_s = []
for _ in range(epochs):
    started = time.perf_counter()
    seen = [train_step(batches) for _ in range(steps)]
    samples = steps * batch
    train_loss = sum(float(loss) for loss, _ in seen) / steps
    train_accuracy = sum(int(correct) for _, correct in seen) / samples
    epoch_times_s.append(time.perf_counter() - started)

print(json.dumps({
    "rank": json.loads(os.environ["TF_CONFIG"])["task"]["index"], "epoch_times_s": epoch_times_s,
    "samples": samples, "parameters": model.count_params(),
    "train_loss": train_loss, "train_accuracy": train_accuracy,
}))  # fmt: skip
