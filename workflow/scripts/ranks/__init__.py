"""What ranks execute, in a framework's environment: the worker, training by each library, adapters of frameworks, timed programs."""
