"""Train with PyTorch: what all frameworks of PyTorch share."""
