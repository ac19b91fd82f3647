"""Each verb hands its options to the function of a stage, or to Snakemake.

A mistake is one line and exit status 2.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from common.files import CHECKOUT
from declared.user_models import user_model_titles
from environments import controller
from importers.statement import Options
from ringside import workflow
from ringside.app import app, run

Call = tuple[tuple[Any, ...], dict[str, Any]]


@pytest.fixture(autouse=True)
def quiet_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the variables of the test's own process."""
    monkeypatch.setattr(workflow, "set_variables", lambda: None)
    for name in ("RINGSIDE_STUDY", "RINGSIDE_SITE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(CHECKOUT)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Call]]:
    """Replace a function of a stage, and return the calls of it."""

    def replace(name: str) -> list[Call]:
        module, _, function = name.rpartition(".")
        calls: list[Call] = []

        def note(*arguments: Any, **named: Any) -> int:
            calls.append((arguments, named))
            return 0

        monkeypatch.setattr(importlib.import_module(module), function, note)
        return calls

    return replace


@pytest.fixture
def snakemake(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines of Snakemake that the process would have become."""
    commands: list[list[str]] = []
    monkeypatch.setattr("plan.unlock.main", lambda **_: None)
    monkeypatch.setattr(os, "execv", lambda program, command: commands.append(command))
    return commands


@pytest.mark.parametrize(
    ("typed", "function", "arguments", "named"),
    [
        ("plan quickstart -s virtual --block 2 --json", "runs.memory_estimates.show_plan", (),
         {"study": "quickstart", "site": "virtual", "block": 2, "as_json": True, "estimates": True}),
        ("plan --no-memory", "runs.memory_estimates.show_plan", (),
         {"study": "", "site": "", "block": None, "as_json": False, "estimates": False}),
        ("status quickstart --watch", "records.status_text.show_status", ("quickstart", ""),
         {"repeatedly": True, "as_json": False}),
        ("preview quickstart", "report.preview.main", (), {"study": "quickstart", "site": ""}),
        ("repeat *ddp* --study rehearsal --site virtual", "records.repeat.repeat_runs",
         ("*ddp*", "rehearsal", "virtual"), {"run": True}),
        (
            "trace a.r1 --full --chakra traces", "traces.make.trace_run", ("a.r1", "", ""),
            {"full": True, "chakra": Path("traces")},
        ),
        ("read-trace x.otf2", "traces.otf2_read.convert", (Path("x.otf2"),), {}),
        ("unlock", "plan.unlock.main", (), {}),
        ("compare a b", "comparison.compare.compare_campaigns", ("a", "b"), {}),
        ("compare a --reference b --margin 10%", "comparison.published.compare_with_reference",
         ("a", "b", 0.1), {}),
        ("import a.csv b --as x --unit ms --bandwidth 100 --accept lattice -n", "importers.campaign.import_measurements",
         (["a.csv", "b"], "x", Options(unit="ms", bandwidth=100.0, accept=["lattice"]), None),
         {"dry_run": True, "overwrite": False, "as_json": False}),
        ("site mine --partition gpu", "sites.site_file.write_site", ("mine", "gpu"), {"local": False}),
        ("doctor --site virtual", "sites.doctor.check_site", ("", "virtual"), {}),
        ("submit rehearsal --wait --keep-going", "runs.submit.submit_blocks", ("rehearsal", ""),
         {"until_end": True, "keep_going": True}),
        ("bundle rehearsal --site virtual", "provenance.bundle.make_bundle", ("rehearsal", "virtual"), {}),
        ("unbundle x.tar --site anywhere", "environments.unbundle.unpack", (Path("x.tar"), "", "anywhere"),
         {}),
        ("cluster up --nodes 4 --cpu 0.9,0.6", "virtual_cluster.control.start",
         ("4", "1gbit", "0.9,0.6", "6G", "slurm"),
         {"accounting": False, "gpus": "none", "constrain_devices": False}),
        ("cluster down --force", "virtual_cluster.control.stop", (), {"force": True}),
        ("models a b --image 9x9x3 --classes 7", "models.listing.show_models",
         (["a", "b"], "9x9x3", None, 7), {"as_json": False, "own": user_model_titles()}),
        ("pack-images there --name leaves", "datasets.pack.pack_dataset",
         ("images", Path("there"), "leaves", 32, 0.2, Path()), {}),
        ("pack-text a.txt --name poems --length 9", "datasets.pack.pack_dataset",
         ("text", Path("a.txt"), "poems", 9, 0.1, Path()), {}),
        ("declare there --name leaves --format webdataset --size 64 --validation test*",
         "datasets.declare.declare_folder", ("webdataset", Path("there"), "leaves", 64),
         {"channels": 3, "vocabulary": 0, "train": "train*", "validation": "test*"}),
    ],
    ids=lambda value: value.partition(" ")[0] if isinstance(value, str) else "",
)  # fmt: skip
def test_a_verb_calls_its_function(
    called: Callable[[str], list[Call]],
    typed: str,
    function: str,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    calls = called(function)
    assert run(typed.split()) == 0
    assert calls == [(arguments, named)]


@pytest.mark.parametrize(("is_equal", "status"), [(True, 0), (False, 1)])
def test_verify_ends_with_1_where_files_differ(
    monkeypatch: pytest.MonkeyPatch, is_equal: bool, status: int
) -> None:
    monkeypatch.setattr("provenance.verify.verify", lambda *_, **__: is_equal)
    assert run(["verify", "quickstart"]) == status


def test_predict_asks_its_question(called: Callable[[str], list[Call]]) -> None:
    calls = called("ringside.predicting.show_projection")
    typed = "predict --model resnet-50 --step-time 0.25 --measured 2x8=0.31 --rate 10 --rate 100 --nodes 64"
    assert run([*typed.split(), "--sync-every", "4", "--out", "x"]) == 0
    ((question, out), _) = calls[0]
    assert (question.model, question.measured_steps, question.rates_gbit_s, question.max_nodes) == (
        "resnet-50",
        ((1, 1, 0.25), (2, 8, 0.31)),
        (10.0, 100.0),
        64,
    )
    assert (question.batch_size, question.sync_every, out) == (32, 4, Path("x"))


def test_strategies_of_a_model_are_searched_for_here(called: Callable[[str], list[Call]]) -> None:
    calls = called("strategies.find.search")
    command = ["strategies", "--model", "lenet-5", "--batch-size", "64", "--devices", "8"]
    assert run([*command, "--starts", "data", "--chakra", "traces", "--strategy", "data parallelism"]) == 0
    ((question, out, traces, strategy), _) = calls[0]
    assert (traces, strategy) == (Path("traces"), "data parallelism")
    assert (question.graph.model, question.batch, question.topology.devices, out) == ("lenet-5", 64, 8, None)
    assert question.starts == ("data", "expert")


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("run", "figures"),
        ("run quickstart -s virtual", "figures --config study=quickstart site=virtual"),
        ("run -n --cores 4 --keep-going", "figures -n --cores=4 --keep-going"),
        ("run --profile slurm --records available", "figures --profile slurm --config records=available"),
        ("run quickstart -- --forcerun aggregate", "figures --forcerun aggregate --config study=quickstart"),
        ("run quickstart -- --config block=2 -p", "figures -p --config study=quickstart block=2"),
        ("report quickstart --records docs/x", "report --config study=quickstart records=docs/x"),
        *((f"{verb} -n", f"{verb} -n") for verb in ("paper", "archive", "pilot", "images", "datasets")),
        (
            "strategies quickstart --profile slurm --dry-run",
            "strategies --profile slurm -n --config study=quickstart",
        ),
    ],
)
def test_snakemake_gets_its_arguments(snakemake: list[list[str]], typed: str, command: str) -> None:
    run(typed.split())
    assert snakemake[0] == [sys.executable, "-m", "snakemake", *command.split()]


def test_study_and_site_may_stand_in_the_environment(
    snakemake: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As make figures STUDY=... SITE=... hands them on."""
    monkeypatch.setenv("RINGSIDE_STUDY", "rehearsal")
    monkeypatch.setenv("RINGSIDE_SITE", "virtual")
    run(["run"])
    assert snakemake[0][3:] == ["figures", "--config", "study=rehearsal", "site=virtual"]


@pytest.mark.parametrize(
    ("typed", "code", "suggestion"),
    [
        ("statu", "unknown-name", "status"),
        ("cluster uo", "unknown-name", ""),
        ("plan quickstrat", "unknown-name", "quickstart"),
        ("plan --site virtul", "unknown-name", "virtual"),
        ("run $(id)", "unknown-name", ""),
        ("models resnet", "unknown-name", "resnet-50"),
        ("plan --sit virtual", "unknown-option", "--site"),
        ("trace", "missing-argument", ""),
        ("compare one", "wrong-count", ""),
        ("compare one two --reference dlperf", "wrong-count", ""),
        ("compare one two --margin 10%", "conflicting-keys", ""),
        ("predict --nodes many", "bad-arguments", ""),
        ("run --cores 0", "bad-arguments", ""),
        ("plan quickstart surplus", "bad-arguments", ""),
        ("plan -- --cores 4", "bad-arguments", ""),
        ("cluster", "bad-arguments", ""),
        ("strategies --devices 4", "missing-argument", ""),
        ("strategies quickstart --model alexnet --batch-size 4", "conflicting-keys", ""),
        ("strategies --model alexnet", "missing-argument", ""),
        ("strategies --model alexnet --batch-size 4 --strategy data", "missing-argument", ""),
    ],
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], typed: str, code: str, suggestion: str
) -> None:
    assert run(typed.split()) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert output.err.startswith("ringside: ") and output.err.endswith(f"[{code}]\n")
    assert (
        (f"did you mean '{suggestion}'?" in output.err) if suggestion else ("did you mean" not in output.err)
    )


def test_outside_of_the_checkout_nothing_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan"]) == 2
    assert "[outside-of-checkout]" in capsys.readouterr().err


def verbs() -> dict[str, Any]:
    top = typer.main.get_command(app).commands
    return {**top, **{f"cluster {name}": verb for name, verb in top["cluster"].commands.items()}}


@pytest.mark.parametrize("name", sorted(set(verbs()) - {"cluster"}))
def test_the_help_of_a_verb_has_an_example_of_it(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert run([*name.split(), "--help"]) == 0
    output = capsys.readouterr().out
    assert f"  ./ringside {name}" in output and "\x1b" not in output


def test_the_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    lines = [
        line.split()[0]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("  ") and line.split()
    ]
    assert set(typer.main.get_command(app).commands) <= set(lines)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ringside st", {"status", "strategies"}),
        ("ringside plan quick", {"quickstart"}),
        ("ringside run --site virtual-s", {"virtual-six"}),
        ("ringside repeat fai", {"failed"}),
        ("ringside run --profile sl", {"slurm"}),
        ("ringside new x --framework pytorch-d", {"pytorch-ddp"}),
    ],
)
def test_a_shell_completes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, expected: set[str]
) -> None:
    monkeypatch.setenv(controller.COMPLETION_VARIABLE, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit):
        run([])
    assert set(capsys.readouterr().out.split()) == expected


def test_models_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "lenet-5", "--json"]) == 0
    assert {row["model"] for row in json.loads(capsys.readouterr().out)} == {"lenet-5"}


def test_programs_of_a_verb_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for name, value in {
        "PIP_TARGET": "/x",
        "PYTHONHOME": "/x",
        "PATH": f"{Path(sys.executable).parent}:/bin",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", "/x")
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "/x")
    workflow.set_variables()
    assert not {"PIP_TARGET", "PYTHONHOME"} & set(os.environ)
    assert os.environ["PATH"] == f"{Path(sys.executable).parent}:/bin"
    assert os.environ["PYTHONPATH"] == str(CHECKOUT / "workflow" / "scripts")
    assert os.environ["SNAKEMAKE_PROFILE"] == str(CHECKOUT / "profiles" / "local")
