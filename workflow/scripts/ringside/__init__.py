"""The command line: each verb hands its options to the function of a stage, or to Snakemake."""
