"""Two starts of a reader's own analysis, in Python and in R, and the program that fills them in."""
