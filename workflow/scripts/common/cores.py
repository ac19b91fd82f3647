"""Work shared by all cores that this process may use."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor


def all_cores() -> ProcessPoolExecutor:
    """A pool with a process for each core, which have all that this one has read."""
    return ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("fork"))
