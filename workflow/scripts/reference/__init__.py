"""Generate the reference pages of the documentation from schemas, tables, figures, Makefile and rules."""
