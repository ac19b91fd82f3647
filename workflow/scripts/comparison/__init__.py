"""Compare two campaigns: which cells changed, by how much, and what else differs between the campaigns."""
