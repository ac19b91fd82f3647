"""Programs of ranks, in a framework's environment: worker, libraries, adapters of frameworks, benchmarks."""
