"""Plan a campaign before anything runs: design, keys of runs, benchmarks, cost, resources of jobs.

Two modules guard the start of Snakemake, which needs the plan: `ownership` and `unlock` keep two of them
apart. `record_status` is here because the plan depends on which records exist.
"""
