"""One call of Snakemake: its checks, the products that it rebuilds, and its messages."""
