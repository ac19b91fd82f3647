"""Plan a campaign before anything runs: design, keys of runs, benchmarks, cost, resources of jobs."""
