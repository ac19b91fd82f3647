"""The reference pages of the documentation, made of what the code says of itself: schemas, tables, kinds, Makefile, rules."""
