"""Neural networks as graphs of operators, from which every library builds the same model; meshes and strategies that divide them."""
