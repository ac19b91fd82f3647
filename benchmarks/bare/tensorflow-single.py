"""Bare TensorFlow on one core (tensorflow_loop)."""

from tensorflow_loop import endless_batches, keras, limit_threads, sgd, small_cnn, step_of, train

limit_threads()
keras.utils.set_random_seed(0)
dataset, steps = endless_batches()
model = small_cnn()
train(model, step_of(model, sgd()), iter(dataset), steps)
