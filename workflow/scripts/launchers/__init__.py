"""Start, watch and end ranks on a machine or through a scheduler: one launcher for each kind of site."""
