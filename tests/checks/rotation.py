"""Run one part of the tests that are too long for every commit: `make rotation-test`.

rotation.yaml lists the parts. The commit's hash chooses one of the parts that take at most MAX_MINUTES on two
cores, as measured. So CI runs these parts over a few dozen commits, and the same commit always runs the same
part. Parts that take longer, or were not measured yet, run by hand only. `--list` shows the parts, `--part NAME`
runs one of them.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from support import long_tests

CHECKOUT = Path(__file__).resolve().parents[2]
PARTS = Path(__file__).with_suffix(".yaml")
MAX_MINUTES = 5


@dataclass(frozen=True)
class Part:
    """A part of a target of the Makefile.

    Attributes:
        name: Its name.
        target: The target.
        minutes: The measured duration with all environments in the cache; None if not measured.
        tests: Node ids of pytest; without any, the part runs the target.
        args: Further arguments of pytest, or the target's ARGS.
    """

    name: str
    target: str
    minutes: float | None = None
    tests: tuple[str, ...] = ()
    args: str = ""

    @property
    def command(self) -> list[str]:
        """The command that runs this part in the checkout."""
        if self.tests:
            return [sys.executable, "-m", "pytest", *self.tests, *shlex.split(self.args)]
        return ["make", "--no-print-directory", self.target, *([f"ARGS={self.args}"] if self.args else [])]

    @property
    def duration(self) -> str:
        """The measured duration in words."""
        return "not measured" if self.minutes is None else f"{self.minutes:g} min"


def load_parts() -> list[Part]:
    """Return the parts of the long tests, and those of rotation.yaml in their order."""
    listed = yaml.safe_load(PARTS.read_text(encoding="utf-8"))
    return [
        *(
            Part(f"long-{number}", "long-test", long_tests.minutes(files), args=f"--long-part={number}")
            for number, files in enumerate(long_tests.split(), start=1)
        ),
        *(Part(**{**entry, "tests": tuple(entry.get("tests", ()))}) for entry in listed),
    ]


def in_turn(parts: list[Part]) -> list[Part]:
    """Return the parts that commits choose from: those with a measured duration of at most MAX_MINUTES."""
    return [part for part in parts if part.minutes is not None and part.minutes <= MAX_MINUTES]


def choose_part(parts: list[Part], commit: str) -> Part:
    """Return the part that a commit runs, by its hash in hexadecimal digits."""
    candidates = in_turn(parts)
    return candidates[int(commit, 16) % len(candidates)]


def current_commit() -> str:
    """Return the hash of the commit that is checked out."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.strip()


def run_part(part: Part) -> int:
    """Run a part and return its exit status."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("ARGS", "MAKEFLAGS", "MAKEOVERRIDES")
    }
    began = time.monotonic()
    status = subprocess.run(part.command, cwd=CHECKOUT, env=environment, check=False).returncode
    minutes = (time.monotonic() - began) / 60
    print(
        f"rotation: {part.name} {'passed' if status == 0 else f'FAILED with status {status}'} after "
        f"{minutes:.1f} min"
    )
    return status


def main(argv: list[str] | None = None) -> int:
    """Run the part of the named targets that the commit's hash chooses."""
    parts = {part.name: part for part in load_parts()}
    parser = argparse.ArgumentParser(prog="make rotation-test", description=main.__doc__)
    parser.add_argument("--list", action="store_true", help="show all parts and run nothing")
    parser.add_argument("--part", choices=parts, metavar="NAME", help="run this part")
    options = parser.parse_args(argv)
    if options.list:
        for part in parts.values():
            print(f"{part.name} ({part.duration}): {shlex.join(part.command)}")
        return 0
    if options.part:
        part, reason = parts[options.part], "by --part"
    else:
        commit = current_commit()
        part = choose_part(list(parts.values()), commit)
        reason = f"by commit {commit[:12]}, one of {len(in_turn(list(parts.values())))}"
    print(f"rotation: {part.name} ({part.duration}), chosen {reason}: {shlex.join(part.command)}", flush=True)
    return run_part(part)


if __name__ == "__main__":
    sys.exit(main())
