"""What changes the key of a run, and what does not."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from common.files import source_files
from declared.factors import factor_table
from declared.frameworks import FRAMEWORKS, RANKS, framework_names, library_path, load_framework
from declared.site import load_site
from declared.study import Study, load_study
from plan import site_resources
from plan.design import Run, plan_design
from plan.identity import plan_run, rank_code, run_spec
from plan.site_resources import device_peak

SCRIPTS = RANKS.parent
STUDY = {
    "title": "t", "question": "q", "seed": 1, "design": "full", "replicates": 1,
    "factors": {
        "framework": "pytorch-ddp", "model": "small-cnn", "dataset": "digits", "nodes": 2, "batch_size": 32,
        "sync_every": 1,
    },
}  # fmt: skip


def study(folder: Path, **factors: object) -> Study:
    (folder / "s.yaml").write_text(yaml.safe_dump({**STUDY, "factors": {**STUDY["factors"], **factors}}))  # type: ignore[dict-item]
    return load_study("s", folder)


def single_run(planned: Study, site: str) -> Run:
    (run,) = plan_design(planned, load_site(site))
    return run


def key(planned: Study, site: str = "virtual") -> str:
    return plan_run(planned, load_site(site), single_run(planned, site)).key


def imported(file: Path) -> set[Path]:
    """The files of ours that a file imports."""
    files_imported: set[Path] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        files_imported |= {
            path for module in modules if (path := SCRIPTS / f"{module.replace('.', '/')}.py").is_file()
        }
    return files_imported


def reached(files: set[Path]) -> set[Path]:
    """`files`, what they import, and so on."""
    extended = files | {path for file in files for path in imported(file)}
    return files if extended == files else reached(extended)


@pytest.mark.parametrize("framework", framework_names())
def test_code_digest_covers_exactly_the_imports_of_ranks(framework: str) -> None:
    own = {path for path in source_files(FRAMEWORKS / framework) if path.suffix == ".py"}
    used = reached({RANKS / "worker" / "__main__.py", *own})
    code_files = {
        file for path in rank_code(framework) for file in (source_files(path) if path.is_dir() else [path])
    }
    assert used <= code_files
    packages = [path for path in map(library_path, load_framework(framework).libraries) if path.is_dir()]
    shared = {RANKS / "worker", FRAMEWORKS / framework, *packages}  # all of their files
    assert {file for file in code_files if not shared & set(file.parents)} <= used


def test_a_factor_named_at_its_default_changes_no_key(tmp_path: Path) -> None:
    defaults = {name: entry["default"] for name, entry in factor_table().items() if "default" in entry}
    numbers = {
        name: float(default)
        for name, default in defaults.items()
        if factor_table()[name].get("type") == "number"
    }
    plain = study(tmp_path)
    assert key(study(tmp_path, **defaults)) == key(study(tmp_path, **(defaults | numbers))) == key(plain)
    assert key(study(tmp_path, weight_decay=0.1)) != key(plain)


def test_the_key_follows_what_shapes_the_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = study(tmp_path)
    before = {site: key(planned, site) for site in ("virtual", "virtual-unshaped", "local")}
    fields = run_spec(planned, load_site("virtual"), single_run(planned, "virtual"))
    assert fields["shaping"] == ["tbf", "rate", "1000000000bit", "burst", "250000", "latency", "50ms"]
    monkeypatch.setattr(
        site_resources, "shaping", lambda rate: ["tbf", "rate", f"{int(8 * rate)}bit", "burst", "9"]
    )
    changed = {site for site in before if key(planned, site) != before[site]}
    assert changed == {"virtual"}


def test_ranks_on_processors_have_a_share_of_the_peak() -> None:
    levels = {"device": "site", "precision": "fp32"}
    peaks = (("bf16", 4.0), ("fp32", 1.2))
    local = replace(load_site("local"), cores=8, nodes=2, ranks_per_node=1, peak_tflops=peaks)
    assert device_peak(local, levels) == pytest.approx(0.6e12), "two ranks share eight cores"
    assert device_peak(local, {**levels, "precision": "amp"}) == pytest.approx(2e12)
    assert device_peak(local, {**levels, "precision": "tf32"}) is None
    virtual = replace(load_site("virtual"), cores=1, ranks_per_node=1, cpu_share=0.3, peak_tflops=peaks)
    assert device_peak(virtual, levels) == pytest.approx(0.36e12), "a node has 0.3 of its core"
    assert device_peak(replace(virtual, ranks_per_node=2), levels) == pytest.approx(0.18e12)
    cuda = replace(load_site("slurm-example"), device="cuda", peak_tflops=peaks)
    assert device_peak(cuda, levels) == 1.2e12
    for changes in ({"device": "cpu"}, {"device": "hybrid"}):
        assert device_peak(cuda, {**levels, **changes}) is None, "the peak is that of accelerators"
    assert device_peak(replace(local, peak_tflops=()), levels) is None
