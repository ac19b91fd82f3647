"""Train with TensorFlow: what all frameworks of TensorFlow share."""
