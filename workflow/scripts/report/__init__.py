"""The report, the paper, and previews of running campaigns."""
