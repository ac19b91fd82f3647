"""One module for each kind of figure; its `draw(records, spec)` returns the figure and its caption."""
