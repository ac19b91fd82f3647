"""A campaign belongs to one site; other sites can only draw its figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import CHECKOUT
from common.notes import Note
from declared.costs import Costs, Price
from declared.environments import Installed
from declared.figure_specs import FigureSpec
from declared.frameworks import load_framework
from declared.site import Site, load_site
from declared.study import Study, load_study
from plan import campaign, cost, site_limits
from plan.binding import bind_results
from plan.campaign import load_campaign, plan_campaign
from plan.collective_benchmarks import CollectiveBenchmarks
from plan.design import plan_design, to_csv
from plan.identity import run_spec
from plan.products import campaign_traits
from plan.site_limits import unsupported_reason
from plan.timings import Timings
from records import status_text
from report import preview
from support.measured_elsewhere import imported_study
from support.refusals import assert_refusal

CONFIG = {"study": "quickstart", "site": "local", "records": "campaign"}


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def bound(**changes: object) -> Path:
    Path("results/quickstart/campaign.json").unlink(missing_ok=True)
    bind_results(Path("results/quickstart"), "quickstart", load_site("local"))
    file = Path("results/quickstart/campaign.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return file


@pytest.mark.parametrize(
    "changes", [{"site": "cluster"}, {"machine": "another-machine"}, {"cores": 4096}, {"python_abi": "cp399"}]
)
def test_nothing_is_added_to_results_of_another_place(changes: dict[str, object]) -> None:
    bound(**changes, machine_id=None)
    with pytest.raises(InputError) as refused:
        load_campaign(CONFIG)
    assert (refused.value.code, refused.value.got) == ("other-place", changes)


def test_of_another_site_no_machine_is_told() -> None:
    bound(site="virtual", machine=None, cores=1)
    with pytest.raises(InputError) as refused:
        load_campaign(CONFIG)
    assert refused.value.got == {"site": "virtual"}
    bound(machine=None, machine_id=None)
    with pytest.raises(InputError) as refused:
        load_campaign(CONFIG)
    assert refused.value.got == {"machine": None} and "None" not in str(refused.value)


def test_results_of_another_site_keep_their_keys_when_read() -> None:
    current = load_campaign(CONFIG)
    bound(machine="another-machine", cores=4096, python_abi="cp399")
    available = load_campaign({**CONFIG, "records": "available"})
    assert (available.site.cores, available.site.python_abi) == (4096, "cp399")
    assert set(available.record_paths) == set(current.record_paths) and set(
        available.record_paths.values()
    ).isdisjoint(current.record_paths.values())


def test_installed_software_is_read_from_results_of_other_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(content: str | None) -> Site:
        return replace(
            load_site("local"), installed=(("pytorch", Installed("/opt/bin/python", content=content)),)
        )

    for content in ("a" * 64, "b" * 64):  # it was another one later
        bind_results(Path("results/quickstart"), "quickstart", at(content))
    monkeypatch.setattr(campaign, "load_site", lambda name: at(None))
    available = load_campaign({**CONFIG, "records": "available"})
    assert available.record_paths == plan_campaign(load_study("quickstart"), at("b" * 64)).record_paths
    assert available.record_paths != plan_campaign(load_study("quickstart"), at("a" * 64)).record_paths


def test_records_that_the_study_no_longer_uses_are_noted() -> None:
    current = load_campaign(CONFIG)
    first, second = (Path(path) for path in list(current.record_paths.values())[:2])
    older = first.parent.with_name("0" * 12) / "record.json"
    removed = first.parents[1].with_name("pytorch-ddp.small-cnn.digits.b512.n1.s1.r1") / "0" / "record.json"
    for file in (older, removed, second, second.parent.with_name("0" * 12) / "record.json"):
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    counts = {note.code: note.facts["runs"] for note in current.unused_records()}
    assert counts == {"older-setting": 1, "not-in-the-design": 1}
    older.rename(first.parent.mkdir() or first)
    assert [note.code for note in current.unused_records()] == ["not-in-the-design"]


def test_published_tables_need_the_right_study(tmp_path: Path) -> None:
    for name in ("runs.csv", "epochs.csv"):
        (tmp_path / name).write_text("run_id,study\nx,quickstart\n")
    assert load_campaign({**CONFIG, "records": str(tmp_path)}).runs == []
    for content, code in (
        ("run_id;study\nx;quickstart\n", "wrong-separator"),
        ("run_id,\xff", "broken-file"),
    ):
        (tmp_path / "runs.csv").write_text(content, encoding="latin-1")
        with pytest.raises(InputError) as refused:
            load_campaign({**CONFIG, "records": str(tmp_path)})
        assert refused.value.code == code
    (tmp_path / "runs.csv").write_text("run_id,study\nx,another\n")
    with pytest.raises(InputError) as refused:
        load_campaign({**CONFIG, "records": str(tmp_path)})
    assert (refused.value.code, refused.value.got) == ("other-study", "another")
    assert refused.value.file == str(tmp_path / "runs.csv")


@pytest.mark.parametrize(
    ("changes", "code", "key"),
    [({"cores": 4096}, "out-of-range", "cores"), ({"interface": "nope0"}, "unknown-name", "interface")],
)
def test_a_site_that_is_not_this_machine_is_refused(
    changes: dict[str, object], code: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_site = replace(load_site("local"), **changes)  # type: ignore[arg-type]
    monkeypatch.setattr("plan.campaign.load_site", lambda _: changed_site)
    with pytest.raises(InputError) as refused:
        load_campaign(CONFIG)
    error = refused.value
    assert (error.code, error.file, error.key, error.got) == (
        code,
        "config/sites/local.yaml",
        key,
        changes[key],
    )


def test_only_data_sets_of_runs_that_can_be_made_are_wanted() -> None:
    shipped, site = load_study("quickstart"), replace(load_site("local"), frameworks=("pytorch-ddp",))
    factors = {
        **shipped.factors,
        "framework": ["pytorch-ddp", "horovod-pytorch"],
        "dataset": ["digits", "cifar-10"],
    }
    entry = {"framework": ["pytorch-ddp"], "dataset": ["cifar-10"]}
    assert list(plan_campaign(replace(shipped, factors=factors, exclude=(entry,)), site).datasets) == [
        "digits"
    ]


def levels_of(framework: str) -> dict[str, object]:
    return {**plan_design(load_study("quickstart"), load_site("local"))[0].levels, "framework": framework}


@pytest.mark.parametrize("name", ["lbann", "tarantella"])
def test_framework_without_lock_must_be_installed_at_the_site(name):
    site, levels = load_site("local"), levels_of(name)
    assert stated(unsupported_reason(site, levels)) == ("not-installed", {"environment": name})
    installed = ((name, Installed("/opt/bin/it")),)
    assert unsupported_reason(replace(site, installed=installed), levels) is None
    brings = replace(site.images, brought=((name, "/images/it.sif"),))
    assert unsupported_reason(replace(site, images=brings), levels) is None
    assert (unsupported_reason(replace(site, deployment="apptainer"), levels) is None) == (name == "lbann"), (
        "Spack builds it as an image"
    )


BFLOAT16 = {"framework": "jax", "precision": "bf16", "parallelism": "sharded2-tensor2"}


@pytest.mark.parametrize(
    ("at", "levels", "code", "facts"),
    [
        ({}, {"precision": "tf32"}, "unsupported-precision", {"precision": "tf32", "device": "cpu"}),
        ({"device": "cuda"}, {"precision": "tf32"}, None, {}),
        ({}, BFLOAT16, "unsupported-precision", {"precision": "bf16", "device": "cpu"}),
        ({"device": "cuda"}, BFLOAT16, None, {}),
        ({}, BFLOAT16 | {"framework": "pytorch-mesh"}, None, {}),
        ({}, {"autotune": "none"}, "no-autotuning", {"autotune": "none", "device": "cpu"}),
        ({"device": "cuda"}, {"autotune": "none", "device": "hybrid", "framework": "pytorch-hybrid"}, None, {}),
        ({"deployment": "apptainer"}, {"compiler": "torch-compile"}, "no-compiler", {"compiler": "torch-compile"}),
        ({}, {"framework": "jax-single", "attention": "unfused"}, "no-fused-attention",
         {"attention": "unfused", "device": "cpu"}),
        ({}, {"framework": "pytorch-single", "attention": "unfused"}, None, {}),
        ({}, {"framework": "lbann", "model": "efficientnet-b0", "dataset": "tiny-imagenet-200"},
         "missing-operators", {"framework": "lbann", "model": "efficientnet-b0", "device": "cpu",
                               "operators": ["depthwise_conv"]}),
        ({"device": "cuda"}, {"framework": "lbann", "model": "efficientnet-b0", "dataset": "tiny-imagenet-200"},
         None, {}),
    ],
)  # fmt: skip
def test_what_a_site_cannot_run_has_a_reason(
    at: dict[str, str], levels: dict[str, str], code: str | None, facts: dict[str, object]
) -> None:
    installed = (("lbann", Installed("/opt/lbann/bin/lbann")),)
    site = replace(load_site("local"), installed=installed, **at)  # type: ignore[arg-type]
    reason = unsupported_reason(site, levels_of("pytorch-ddp") | levels)
    assert stated(reason) == ((code, facts) if code else None)


def test_framework_for_cpus_is_refused_on_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = replace(load_framework("pytorch-ddp"), devices=("cpu",))
    monkeypatch.setattr(site_limits, "load_framework", lambda _: framework)
    site = replace(load_site("local"), device="cuda")
    facts = {"framework": "pytorch-ddp", "device": "cuda"}
    assert stated(unsupported_reason(site, levels_of("pytorch-ddp"))) == ("unsupported-device", facts)
    assert unsupported_reason(load_site("local"), levels_of("pytorch-ddp")) is None


def test_lbann_is_missing_where_nothing_joins_programs_of_mpi():
    installed = (("lbann", Installed("/opt/bin/lbann")),)
    for name, starts in {"pbs-example": "pbs_tmrsh", "flux-example": "flux submit"}.items():
        site = replace(load_site(name), installed=installed)
        facts = {"framework": "lbann", "launcher": site.launcher, "starts": starts}
        assert stated(unsupported_reason(site, levels_of("lbann"))) == ("no-mpi", facts)
    assert (
        unsupported_reason(replace(load_site("grid5000"), installed=installed), levels_of("lbann")) is None
    ), "mpirun over oarsh"


def test_score_p_is_part_of_runs_under_it_only(tmp_path: Path) -> None:
    site, study = load_site("local"), load_study("quickstart")
    installed = (
        ("lbann", Installed("/opt/lbann/bin/lbann")),
        ("horovod-pytorch", Installed("/opt/bin/python")),
    )
    site_without_scorep = replace(site, installed=installed)
    (tmp_path / "bin").mkdir()
    config = tmp_path / "bin" / "scorep-config"
    config.write_text("#!/bin/sh\necho Score-P 8.4\n")
    config.chmod(0o755)
    run = plan_design(study, site)[0]

    def spec_of(at: Site, **levels: object) -> dict[str, object]:
        return run_spec(study, at, replace(run, levels={**run.levels, **levels}))

    for levels in (
        {"framework": "lbann", "trace": "phases"},
        {"framework": "horovod-pytorch", "trace": "full"},
    ):
        assert spec_of(replace(site_without_scorep, scorep=tmp_path), **levels) == spec_of(
            site_without_scorep, **levels
        )
    full = {"framework": "lbann", "trace": "full"}
    assert spec_of(replace(site_without_scorep, scorep=tmp_path), **full) == {
        **spec_of(site_without_scorep, **full),
        "scorep": "8.4",
    }
    brings = replace(
        site, scorep=tmp_path, images=replace(site.images, brought=(("lbann", "/images/lbann.sif"),))
    )
    assert "scorep" not in spec_of(brings, **full), "an image does not see it"
    levels, nowhere = {**run.levels, **full}, replace(site_without_scorep, scorep=Path("/nowhere"))
    assert unsupported_reason(replace(site_without_scorep, scorep=tmp_path), levels) is None
    assert stated(unsupported_reason(nowhere, levels)) == ("no-scorep", {"scorep": Path("/nowhere")})
    assert unsupported_reason(nowhere, {**levels, "trace": "phases"}) is None


def test_a_design_is_current_until_runs_change() -> None:
    study, site = load_study("quickstart"), load_site("local")
    assert not plan_campaign(study, site).is_design_current, "there is none"
    file = Path("results/quickstart/design.csv")
    file.parent.mkdir(parents=True)
    file.write_text(to_csv(plan_design(study, site)))
    assert plan_campaign(
        replace(study, title="another", figures=(FigureSpec("overview", "overview"),)), site
    ).is_design_current
    assert not plan_campaign(replace(study, seed=study.seed + 1), site).is_design_current


def test_a_block_that_is_not_there_is_refused() -> None:
    campaign = load_campaign(CONFIG)
    assert campaign.record_paths_of_block(1) and set(campaign.record_paths_of_block(None)) == set(
        campaign.record_paths.values()
    )
    with pytest.raises(InputError) as refused:
        campaign.record_paths_of_block(99)
    error = refused.value
    assert (error.code, error.key, error.got) == ("unknown-name", "block", 99)
    assert error.expected == "one of 1, 2, 3, 4, 5"


def test_a_file_where_a_folder_is_to_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGSIDE_CACHE", str(tmp_path / "cache" / "of" / "mine"))
    (tmp_path / "cache").touch()
    for folder, name in ((tmp_path / "cache", str(tmp_path / "cache")), (Path("results"), "results")):
        if not folder.exists():
            folder.touch()
        with pytest.raises(InputError) as refused:
            load_campaign(CONFIG)
        assert (refused.value.code, refused.value.file) == ("not-a-folder", name)


def stated(note: Note | None) -> tuple[str, dict[str, object]] | None:
    return note and (note.code, dict(note.facts))


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"site": "local", "machine": null, "cores": "a", "python_abi": "cp311"}']
)
def test_a_broken_binding_is_refused_in_one_line(text: str) -> None:
    bound().write_text(text)
    with pytest.raises(InputError) as refused:
        load_campaign(CONFIG)
    assert (refused.value.code, refused.value.file) == ("broken-file", "results/quickstart/campaign.json")


@pytest.mark.parametrize("changes", [{"studdy": "x"}, {"study": "../secret"}, {"site": "nowhere"}])
def test_a_wrong_configuration_is_refused_in_one_line(changes: dict[str, str]) -> None:
    with pytest.raises(InputError) as refused:
        load_campaign({**CONFIG, **changes})
    assert refused.value.key in changes and "\n" not in str(refused.value)


def test_records_that_are_no_folder_are_refused() -> None:
    with pytest.raises(InputError) as refused:
        load_campaign({**CONFIG, "records": "nothing-here"})
    error = refused.value
    assert (error.code, error.file, error.key, error.got) == (
        "missing-file",
        "config/config.yaml",
        "records",
        "nothing-here",
    )


def test_runs_have_priorities_in_planned_order_and_their_inputs() -> None:
    campaign = load_campaign(CONFIG)
    plan_campaign = [run.run_id for run in campaign.runs]
    assert sorted(plan_campaign, key=lambda run_id: -campaign.priorities[run_id]) == plan_campaign
    needed = list(campaign.environments)
    assert sorted(needed) == ["horovod-pytorch", "horovod-tensorflow", "pytorch", "tensorflow"]
    assert needed.index("pytorch") < needed.index("horovod-pytorch"), "parents first"
    for run in campaign.runs:
        assert Path(campaign.environment_of(run.run_id)).is_absolute()
        (prepared,) = campaign.dataset_of(run.run_id)
        assert prepared.endswith("/prepared")


def test_traits_follow_the_site_or_published_tables(tmp_path: Path) -> None:
    site, study = load_site("local"), load_study("quickstart")
    costs = Costs(price_per_node_hour=Price(3.2, "EUR"))
    for at, priced in ((site, False), (replace(site, costs=costs, reference=False), True)):
        traits = plan_campaign(study, at).recorded_traits
        assert (traits["priced"], traits["grid_stated"]) == (priced, False)
        assert traits["reference_timed"] == at.reference
    for name in ("runs", "epochs"):
        (tmp_path / f"{name}.csv").write_text("run_id,grid_g_co2_per_kwh,reference_s\nx,250,\ny,250,0.3\n")
    traits = load_campaign({**CONFIG, "records": str(tmp_path)}).recorded_traits
    assert (traits["priced"], traits["grid_stated"], traits["reference_timed"]) == (False, True, True)


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study of measurements made elsewhere, as if it were in config/studies."""
    monkeypatch.chdir(CHECKOUT)
    study = imported_study("measured-mlperf")
    for module in (campaign, cost, preview, status_text):
        monkeypatch.setattr(module, "load_study", lambda name: study)
    return study


def test_measurements_made_elsewhere_are_published_tables(imported: Study) -> None:
    loaded = load_campaign({**CONFIG, "study": imported.name})
    assert loaded.mode == "published" and not loaded.record_paths and not loaded.can_grow
    assert loaded.published_folder and loaded.published_folder.name == "mlperf"


def test_measurements_made_elsewhere_are_not_planned(
    imported: Study, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as refused:
        plan_design(imported, load_site("local"))
    assert_refusal(refused.value, "measured-elsewhere", "imported")
    for show in (cost.main, status_text.show_status):
        show(study=imported.name, as_json=True)
        facts = json.loads(capsys.readouterr().out)
        assert (facts["runs"], facts["cells"], facts["licence"]) == (30, 3, "Apache-2.0")


def test_preview_of_measurements_made_elsewhere_is_refused(
    imported: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "existing_file", lambda *_: None)
    monkeypatch.setattr("os.nice", lambda _: 0)
    with pytest.raises(InputError) as refused:
        preview.main(study=imported.name)
    assert_refusal(refused.value, "measured-elsewhere", "imported")


def test_utilization_without_a_peak_is_refused_at_once(tmp_path: Path) -> None:
    study, site = load_study("quickstart"), load_site("local")
    by_response = replace(study, response="mfu")
    with pytest.raises(InputError) as refused:
        plan_campaign(by_response, site).check_responses()
    assert (refused.value.code, refused.value.key, refused.value.got) == (
        "not-possible-here",
        "peak_tflops",
        "mfu",
    )
    drawn = replace(study, figures=[FigureSpec(kind="by_factor", name="mfu", x="nodes", y="hfu")])
    with pytest.raises(InputError):
        plan_campaign(drawn, site).check_responses()
    for possible in (replace(site, peak_tflops=(("fp32", 1.2),)), replace(site, device="cuda")):
        planned = plan_campaign(by_response, possible)
        planned.check_responses()
        traits = campaign_traits(planned, CollectiveBenchmarks(planned), Timings(planned))
        assert traits.peak_known
    assert not plan_campaign(study, site).peak_known
