"""Train with JAX: what all frameworks of JAX share."""
