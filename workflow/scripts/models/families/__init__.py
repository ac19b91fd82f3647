"""One module for each family of models. A module's MODELS maps a model's name to what it is; models.named finds them all."""
