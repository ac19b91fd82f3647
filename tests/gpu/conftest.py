"""Run programs on a CUDA device that computes nothing (fake_cuda.py)."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common import prefork_server
from common.program_sources import SCRIPTS
from datasets.prepare import prepare
from declared.frameworks import load_framework
from gpu.compiled import compile_once
from launchers.variables import kept_variables
from models.graph import Graph
from runs.rank_input import rank_input
from support.installed_site import SITE
from support.one_run import one_run
from support.workers import shared_folder

TESTS = Path(__file__).resolve().parents[1]
SOURCE = Path(__file__).with_name("fake_cuda.cpp")
PLAIN = {"sync_every": 1, "batch_size": 16, "epochs": 1, "warmup_epochs": 0}
PRELOADED = (  # The device has to be loaded before PyTorch is.
    "gpu.fake_cuda",
    "ranks.libraries.pytorch_mesh",
    "ranks.libraries.pytorch_ddp",
    "ranks.libraries.pytorch_strategy",
)


def compile_device(python: Path, folder: Path) -> Path:
    """Compile fake_cuda.cpp against the PyTorch of a virtual environment; return the library."""
    (torch,) = python.parents[1].glob("lib/python3*/site-packages/torch")
    library = folder / "fake_cuda.so"
    libraries = (f"-L{torch}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch}/lib")
    compile_once(
        library, ["c++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{torch}/include", SOURCE, *libraries]
    )
    return library


@pytest.fixture(scope="session")
def callers(tmp_path_factory: pytest.TempPathFactory, real: Callable[[str], Any]) -> Callable[..., Any]:
    """A function that returns what `on_fake_cuda` is, for an environment with PyTorch and modules to import."""
    pytorch = Path(real("pytorch")["python"]["executable"])
    folder = shared_folder(tmp_path_factory) / "fake-cuda"
    folder.mkdir(exist_ok=True)
    variables = {
        **kept_variables(),
        "PYTHONPATH": f"{SCRIPTS}{os.pathsep}{TESTS}",
        "RINGSIDE_FAKE_CUDA": str(compile_device(pytorch, folder)),
    }

    def caller(environment: str, *modules: str) -> Callable[..., Any]:
        python = real(environment)["python"]["executable"]
        server = prefork_server.start_server((*PRELOADED, *modules), python, variables)

        def call(module: str, function: str, *arguments: Any) -> Any:
            request = json.dumps([module, function, *arguments], default=str)
            done = subprocess.run(
                [python, "-IS", prefork_server.__file__, "gpu.call", request],
                env={**variables, prefork_server.SERVER_VARIABLE: server},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            return json.loads(done.stdout.splitlines()[-1])

        return call

    return caller


@pytest.fixture(scope="session")
def on_fake_cuda(callers: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls a module's function in a process of its own, and returns its result, as JSON has it.

    The process is forked from one that has imported PyTorch. Arguments are what JSON can hold, and paths.
    """
    caller: Callable[..., Any] = callers("pytorch")
    return caller


@pytest.fixture(scope="session")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that plans a run on GPUs, at most 8 for each node, and returns the folder that its ranks get."""
    folders = tmp_path_factory.mktemp("on-fake-cuda")

    def plan(
        framework: str, ranks: int = 1, graph: Graph | None = None, device: str = "cuda", **levels: Any
    ) -> Path:
        nodes = -(-ranks // 8)
        site = replace(SITE, device=device, cores=ranks, nodes=nodes, ranks_per_node=ranks // nodes)
        run, spec = one_run(
            site,
            framework=framework,
            **{**PLAIN, "nodes": nodes, "devices_per_node": ranks // nodes, **levels},
        )
        data = folders / "data" / run.levels["dataset"]
        if not data.exists():
            prepare(run.levels["dataset"], data)
        hosts = [f"node{number}" for number in range(nodes)]
        model = (graph or run.graph).to_json()
        folder = folders / f"{len(list(folders.iterdir()))}"
        folder.mkdir()
        content = rank_input(spec, load_framework(framework), {}, model, data, hosts)
        (folder / "rank_input.json").write_text(json.dumps(content))
        return folder

    return plan
