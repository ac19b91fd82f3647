"""Neural networks as graphs for every library, and meshes and strategies that partition them."""
