"""Plans: for every operator of a model how it is divided and where its parts are, found by simulation of a step."""
