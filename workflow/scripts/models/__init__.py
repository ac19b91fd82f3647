"""The models of studies, each described once, as a graph of operators from which every library builds it."""
