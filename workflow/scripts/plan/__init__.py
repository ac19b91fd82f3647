"""Plan a campaign before anything runs: design, keys of runs, collective benchmarks, cost, resources of jobs."""
