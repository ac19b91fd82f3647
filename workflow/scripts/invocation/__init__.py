"""One call of Snakemake: its checks, which products it makes again, and what it says."""
