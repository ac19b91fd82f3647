"""Families of models, one module each; models.named collects the MODELS of all modules."""
