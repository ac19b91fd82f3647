"""Bare Horovod with TensorFlow, one core a rank: DATA BATCH EPOCHS; started by horovodrun."""

import json
import sys
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

keras = tf.keras
data, batch, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
hvd.init()
keras.utils.set_random_seed(0)

images = np.load(f"{data}/train/images.npy").astype(np.float32)
images = tf.constant((images - images.mean()) / images.std())
labels = tf.constant(np.load(f"{data}/train/labels.npy"))
steps = len(labels) // (batch * hvd.size())
order = tf.data.Dataset.range(len(labels)).shard(hvd.size(), hvd.rank()).shuffle(len(labels)).repeat()
order = order.batch(batch, drop_remainder=True)
batches = iter(order.map(lambda i: (tf.gather(images, i), tf.gather(labels, i))).prefetch(tf.data.AUTOTUNE))

model = keras.Sequential([
    keras.Input((8, 8, 1)),
    keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
    keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
    keras.layers.Flatten(),
    keras.layers.Dense(128, activation="relu"),
    keras.layers.Dense(10),
])  # fmt: skip
hvd.broadcast_variables(model.variables, root_rank=0)
optimizer = keras.optimizers.legacy.SGD(0.05, momentum=0.9)


@tf.function
def train_step(iterator):
    x, y = next(iterator)
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss, tf.math.count_nonzero(tf.argmax(logits, 1) == y)


epoch_times_s = []
for _ in range(epochs):
    hvd.allreduce(tf.zeros(()), name="barrier")
    started = time.perf_counter()
    seen = [train_step(batches) for _ in range(steps)]
    samples = steps * batch
    train_loss = sum(float(loss) for loss, _ in seen) / steps
    train_accuracy = sum(int(correct) for _, correct in seen) / samples
    epoch_times_s.append(time.perf_counter() - started)

print(json.dumps({
    "rank": hvd.rank(), "epoch_times_s": epoch_times_s, "samples": samples,
    "parameters": model.count_params(), "train_loss": train_loss, "train_accuracy": train_accuracy,
}))  # fmt: skip
hvd.shutdown()
