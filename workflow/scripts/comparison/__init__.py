"""Two campaigns compared: which cells changed from one to the other, by how much, and what else differs between them."""
