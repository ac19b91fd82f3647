"""Every figure and every table, declared once: what makes it, from which inputs, when it exists, and what it says."""
