"""Bare MultiWorkerMirroredStrategy (tensorflow_loop), one core a worker; the workers stand in TF_CONFIG."""

import json
import os
import sys

import tensorflow as tf
from tensorflow_loop import endless_batches, keras, limit_threads, sgd, small_cnn, train

limit_threads()
options = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.RING
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
workers = strategy.num_replicas_in_sync
global_batch = int(sys.argv[2]) * workers
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
keras.utils.set_random_seed(0)
dataset, steps = endless_batches(rank, workers)
no_sharding = tf.data.Options()
no_sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
batches = strategy.distribute_datasets_from_function(lambda _: dataset.with_options(no_sharding))
with strategy.scope():
    model = small_cnn()
    optimizer = sgd()


@tf.function
def train_step(iterator):
    def on_replica(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.reduce_mean(losses), tf.math.count_nonzero(tf.argmax(logits, 1) == y)

    return strategy.run(on_replica, args=next(iterator))


train(model, train_step, iter(batches), steps, rank)
