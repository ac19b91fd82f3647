"""Neural networks as graphs that every library builds alike, and meshes and strategies that divide them."""
