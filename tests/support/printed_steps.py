"""Print the steps of a training that does not take place, as Megatron-LM prints them: a command for tests.

python printed_steps.py STEPS BATCH STEP_MS [--last-words TEXT] [--status NUMBER] [--file FILE]
"""

import argparse
import sys
import time


def main() -> int:
    """Print the steps, one each STEP_MS, and return the status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("batch", type=int)
    parser.add_argument("step_ms", type=float)
    parser.add_argument("--last-words", default="")
    parser.add_argument("--status", type=int, default=0)
    parser.add_argument("--file")
    options = parser.parse_args()
    output = open(options.file, "w") if options.file else sys.stdout  # noqa: SIM115 (until the end)
    for step in range(1, options.steps + 1):
        time.sleep(options.step_ms / 1000)
        print(
            f" [2026-11-28 10:00:00] iteration {step:8}/{options.steps:8} | elapsed time per iteration (ms): "
            f"{options.step_ms:.3f} | global batch size: {options.batch:5} | lm loss: {1 / step:E} |",
            file=output,
            flush=True,
        )
    if options.last_words:
        print(options.last_words, file=sys.stderr, flush=True)
    return options.status


if __name__ == "__main__":
    sys.exit(main())
