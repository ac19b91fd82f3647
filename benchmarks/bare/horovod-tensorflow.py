"""Bare Horovod with TensorFlow (tensorflow_loop); started by horovodrun."""

import horovod.tensorflow as hvd
import tensorflow as tf
from tensorflow_loop import endless_batches, keras, limit_threads, sgd, small_cnn, step_of, train

limit_threads()
hvd.init()
keras.utils.set_random_seed(0)
dataset, steps = endless_batches(hvd.rank(), hvd.size())
model = small_cnn()
hvd.broadcast_variables(model.variables, root_rank=0)
train_step = step_of(model, sgd(), hvd.DistributedGradientTape)
train(
    model, train_step, iter(dataset), steps, hvd.rank(), lambda: hvd.allreduce(tf.zeros(()), name="barrier")
)
hvd.shutdown()
