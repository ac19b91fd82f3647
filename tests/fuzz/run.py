"""Mutate files and let their readers read them: `make fuzz`.

Findings are kept in the corpus, and read by the unit tests from then on.

Each target of targets.py runs in a process of its own, by Atheris (libFuzzer), which finds new paths through
our modules by their coverage. `tests/fuzz/corpus/<target>/` has earlier findings; it is small, and every test
run reads it (tests/unit/fuzz/).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common.files import digest_text, hold_lock

FOLDER = Path(__file__).parent
CORPUS = FOLDER / "corpus"
LOCK = FOLDER / "requirements.txt"
TIMEOUT_S = 5
MAX_MEMORY_MB = 1000  # of a process that has imported pandas (half of it)


def fuzzer() -> Path:
    """Return the folder with Atheris, installed once into the user's cache."""
    cache = Path(os.environ.get("RINGSIDE_CACHE") or "~/.cache/ringside").expanduser()
    folder = cache / "fuzz" / digest_text(LOCK.read_text() + sys.version)[:12]
    with hold_lock(folder.with_name(f".{folder.name}.lock"), lambda: None):
        if not (folder / "whole").exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            options = ["--no-deps", "--require-hashes", "--requirement", str(LOCK), "--target", str(folder)]
            subprocess.run([*pip, *options], check=True)
            (folder / "whole").touch()
    return folder


def fuzz_here(name: str, options: list[str]) -> None:
    """Fuzz one target in this process, until libFuzzer ends it."""
    sys.path.append(str(fuzzer()))
    import atheris

    with atheris.instrument_imports(
        include=[
            "common",
            "declared",
            "datasets",
            "plan",
            "environments",
            "runs",
            "provenance",
            "traces",
            "sites",
            "ranks",
            "training_logs",
            "importers",
        ]
    ):
        from fuzz.targets import TARGETS, call

    target = TARGETS[name]
    with tempfile.TemporaryDirectory(prefix="ringside-fuzz-") as folder:
        seeds = Path(folder) / "seeds"
        seeds.mkdir()
        for number, content in enumerate(target.seeds()):
            (seeds / str(number)).write_bytes(content)
        work = Path(folder) / "work"
        work.mkdir()
        findings = [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
        atheris.Setup(
            [sys.argv[0], *options, str(seeds), *findings], lambda content: call(target, content, work)
        )
        atheris.Fuzz()


def fuzz_target(name: str, seconds: int) -> bool:
    """Fuzz one target in a process of its own, print the result, and return whether it had no finding."""
    began = time.monotonic()
    command = [sys.executable, "-m", "fuzz.run", "--here", name, "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    runs = next(
        (line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line), "?"
    )
    verdict = "FOUND" if done.returncode else "ok"
    lines = [f"{name}: {runs} files in {time.monotonic() - began:.0f} s: {verdict}"]
    if done.returncode:
        lines.append((done.stdout + done.stderr)[-4000:])
    print("\n".join(lines), flush=True)
    return not done.returncode


def main() -> int:
    """Fuzz readers of files, and return 1 if there was a finding."""
    from fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="make fuzz", description=main.__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="for each target (default 600)")
    parser.add_argument(
        "--target", action="append", choices=TARGETS, help="only this one; may be given again"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="targets at once (default: one for each core)"
    )
    parser.add_argument("--here", choices=TARGETS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    limits = [f"-max_total_time={options.seconds}", f"-timeout={TIMEOUT_S}", f"-rss_limit_mb={MAX_MEMORY_MB}"]
    if options.here:
        fuzz_here(
            options.here,
            [
                *limits,
                "-verbosity=0",
                "-print_final_stats=1",
                f"-artifact_prefix={FOLDER}/found-{options.here}-",
            ],
        )
        return 0
    fuzzer()
    with ThreadPoolExecutor(options.jobs) as jobs:
        went_well = list(jobs.map(lambda name: fuzz_target(name, options.seconds), options.target or TARGETS))
    return 0 if all(went_well) else 1


if __name__ == "__main__":
    sys.exit(main())
