"""Images, built and run on the virtual cluster: the same training as in virtual environments.

CI builds the image of PyTorch; `make images-test` builds all four.
"""

import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from common.files import CHECKOUT
from common.shell import capture
from declared.environments import Realization, read
from environments.build import build
from environments.container import Bind, command_in_image
from support.campaigns import Campaign, no_worker_is_left, study, wait_until
from support.tiny_environments import SELFTEST, Tiny, write_tiny

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("apptainer")]

FRAMEWORKS = {
    "pytorch": "pytorch-ddp",
    "tensorflow": "tensorflow-multiworker",
    "deepspeed": "deepspeed",
    "horovod-pytorch": "horovod-pytorch",
    "horovod-tensorflow": "horovod-tensorflow",
}
EVERY = [
    pytest.param(name, marks=[] if name == "pytorch" else pytest.mark.every_image, id=name)
    for name in FRAMEWORKS
]
BUILD = """
import sys
from pathlib import Path
from common.errors import exit_status
from environments.build import build
from declared.environments import Realization, read
sys.exit(exit_status(lambda: build(
    read("base", containers=Path(sys.argv[1])), Path(sys.argv[2]), realization=Realization("apptainer", sys.argv[3])
)))
"""


@pytest.fixture(scope="module")
def campaigns(
    virtual_cluster: None, shared_folder_of_module: Path
) -> Callable[[str], tuple[Campaign, Campaign]]:
    """A function that runs a study of an environment in virtual environments and in images, once each."""
    done: dict[str, tuple[Campaign, Campaign]] = {}

    def run(name: str) -> tuple[Campaign, Campaign]:
        if name not in done:
            text = study(framework=FRAMEWORKS[name], nodes="[1, 2]", epochs=2)
            in_venvs, in_images = (
                Campaign(shared_folder_of_module / f"{name}-{way}", text, reference=True)
                for way in ("venv", "image")
            )
            in_images.checkout.edit(
                "config/sites/virtual.yaml",
                "deployment: venv",
                "deployment: apptainer\nimages: {base: debootstrap}",
            )
            with in_images.running("images") as snakemake:
                assert in_images.finish(snakemake, 1800) == 0, in_images.output()
            for campaign in (in_images, in_venvs):
                submitted = campaign.checkout.program("ringside", "submit", "--wait")
                assert submitted.returncode == 0, submitted.stdout + submitted.stderr
                assert {row["status"] for row in campaign.rows()} == {"ok"}, [
                    row["reason"] for row in campaign.rows()
                ]
            done[name] = in_venvs, in_images
        return done[name]

    return run


def records(campaign: Campaign) -> dict[str, dict[str, Any]]:
    """Return the records by run_id."""
    contents = [json.loads((campaign.results / path).read_text()) for path in campaign.checkout.records()]
    return {record["run_id"]: record for record in contents}


def environment(campaign: Campaign, record: dict[str, Any], name: str) -> dict[str, Any]:
    """Return environment.json of the environment of a run."""
    cache = Path(os.environ.get("RINGSIDE_CACHE", "~/.cache/ringside")).expanduser()
    folder = cache / "environments" / name / record["environment_digest"][:12]
    content: dict[str, Any] = json.loads((folder / "environment.json").read_text())
    return content


@pytest.mark.parametrize("name", EVERY)
def test_records_hold_the_image_and_what_is_in_it(
    campaigns: Callable[[str], tuple[Campaign, Campaign]], name: str
) -> None:
    in_venvs, in_images = campaigns(name)
    for run_id, record in records(in_images).items():
        described = environment(in_images, record, name)
        digest = hashlib.sha256(Path(described["image"]["path"]).read_bytes()).hexdigest()
        assert record["deployment"] == "apptainer" and record["image"]["sha256"] == digest, run_id
        assert record["packages"] == described["packages"]
        assert record["measured"]["throttled_s"] is not None, "the node's counters are seen from inside"
        assert record["reference"]["before"] and record["reference"]["after"], record["reference"]["reason"]
        plain = records(in_venvs)[run_id]
        assert plain["deployment"] == "venv" and plain["image"] is None
        image_packages = {
            package: version for package, version in record["packages"].items() if package != "pip"
        }
        assert image_packages == plain["packages"], "the same lock gives the same versions"


@pytest.mark.parametrize("name", EVERY)
def test_the_losses_are_those_of_a_virtual_environment(
    campaigns: Callable[[str], tuple[Campaign, Campaign]], name: str
) -> None:
    of_venvs, of_images = (losses(campaign) for campaign in campaigns(name))
    assert len(of_images) == 2 * len(records(campaigns(name)[1])) == len(of_venvs)
    for epoch, image_losses in of_images.items():
        assert image_losses == pytest.approx(of_venvs[epoch], rel=0, abs=1e-6), epoch
    assert no_worker_is_left()


def losses(campaign: Campaign) -> dict[tuple[str, str], list[float]]:
    """Return training and validation loss of every epoch of every run."""
    with open(campaign.results / "epochs.csv", newline="") as table:
        return {
            (row["run_id"], row["epoch"]): [float(row["train_loss"]), float(row["validation_loss"])]
            for row in csv.DictReader(table)
        }


@pytest.fixture(scope="module")
def pytorch_image(campaigns: Callable[[str], tuple[Campaign, Campaign]]) -> dict[str, Any]:
    """environment.json of the image of PyTorch."""
    campaign = campaigns("pytorch")[1]
    return environment(campaign, next(iter(records(campaign).values())), "pytorch")


def test_an_image_says_what_it_is_runs_and_tests_itself(pytorch_image: dict[str, Any]) -> None:
    path = pytorch_image["image"]["path"]
    labels = run_command("apptainer", "inspect", "--labels", path)
    assert f"ringside.digest: {pytorch_image['digest']}" in labels and "ringside.torch: 2.13.0+cpu" in labels
    assert (
        run_command("apptainer", "run", "--userns", path, "-c", "import torch; print(torch.__version__)")
        == "2.13.0+cpu\n"
    )
    assert (
        json.loads(run_command("apptainer", "test", "--userns", path).splitlines()[-1])["all_reduce"] == 3.0
    )
    assert "sha256:" in (Path(path).with_name("recipe.def")).read_text()


def run_command(*command: str) -> str:
    """Run a command, which has to succeed, and return its output."""
    return capture(command, check=True).stdout


INSPECT = """
import json, os, sys
def writable(folder):
    try:
        open(os.path.join(folder, "written"), "w").close()
        return True
    except OSError:
        return False
print(json.dumps({
    "variables": dict(os.environ), "home": os.path.exists(os.path.join(sys.argv[1], "secret")),
    "checkout": os.path.exists(sys.argv[2]), "read": writable(sys.argv[3]), "written": writable(sys.argv[4]),
    "tmp": os.listdir("/tmp"),
}))
"""


def test_a_program_inside_sees_what_is_named_and_nothing_else(
    pytorch_image: dict[str, Any], shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "a, \"b\" 'c' $(touch /tmp/pwned) `touch /tmp/pwned`; touch /tmp/pwned"
    folders = [shared_folder / name / hostile.replace("/", "") for name in ("home", "read", "write")]
    for folder in folders:
        folder.mkdir(parents=True)
    home, read_only, writable = folders
    (home / "secret").touch()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SECRET", "a token")
    monkeypatch.setenv("PYTHONPATH", "/of/the/caller")
    monkeypatch.setenv("TOLD", hostile)
    monkeypatch.setenv("APPTAINERENV_SMUGGLED", "by a module")
    monkeypatch.setenv("APPTAINER_BIND", str(home))
    monkeypatch.setenv("SINGULARITY_BINDPATH", str(CHECKOUT))
    monkeypatch.setenv("RINGSIDE_RANK", "3")
    program = [
        "python3",
        "-c",
        INSPECT,
        str(home),
        str(CHECKOUT / "Snakefile"),
        str(read_only),
        str(writable),
    ]
    command = command_in_image(
        pytorch_image["image"]["path"],
        program,
        [Bind(str(read_only)), Bind(str(writable), writable=True)],
        ["TOLD"],
    )
    seen = json.loads(run_command(*command))
    assert seen["variables"]["TOLD"] == hostile and seen["variables"]["RINGSIDE_RANK"] == "3"
    assert not {"SECRET", "PYTHONPATH", "SMUGGLED"} & set(seen["variables"])
    assert (seen["home"], seen["checkout"], seen["read"], seen["written"]) == (False, False, False, True)
    assert seen["tmp"] == [] and not Path("/tmp/pwned").exists()  # noqa: S108 (what the hostile text would make)
    assert [path.name for path in writable.iterdir()] == ["written"] and not list(read_only.iterdir())


class TestTiny:
    """Builds of a tiny environment on top of the image of PyTorch, which take little time."""

    @pytest.fixture
    def tiny(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
        """The tiny environment: description, package, and an empty cache."""
        write_tiny(tmp_path)
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
        return Tiny(tmp_path / "containers", tmp_path / "links", tmp_path / "cache", tmp_path / "count")

    @pytest.fixture
    def started(
        self, tiny: Tiny, pytorch_image: dict[str, Any]
    ) -> Iterator[Callable[[], subprocess.Popen[str]]]:
        """A function that starts a build in a process group of its own."""
        processes: list[subprocess.Popen[str]] = []

        def start() -> subprocess.Popen[str]:
            places = [str(tiny.containers), str(tiny.cache), pytorch_image["image"]["path"]]
            variables = {**os.environ, "PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")}
            command = [sys.executable, "-c", BUILD, *places]
            processes.append(
                subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True, process_group=0)
            )
            return processes[-1]

        yield start
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def test_killed_build_leaves_no_image_and_the_next_is_complete(
        self, tiny: Tiny, started: Callable[[], subprocess.Popen[str]], pytorch_image: dict[str, Any]
    ) -> None:
        killed = started()
        wait_until(lambda: "Running post scriptlet" in logs(tiny), "the build is in its middle", 120)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        assert not list(tiny.cache.rglob("image.sif")) and not list(tiny.cache.rglob("environment.json"))
        again = started()
        assert again.wait(300) == 0, again.communicate()[1]
        (stamp,) = tiny.cache.rglob("environment.json")
        described = json.loads(stamp.read_text())
        assert described["packages"]["tiny-package"] == "1.0" and described["variables"] == {
            "GREETING": "hello"
        }
        assert not list(tiny.cache.rglob("*.partial*"))
        command = command_in_image(
            described["image"]["path"], ["sh", "-c", "ls -A /mnt /opt/ringside/build; cat /etc/pip.conf"]
        )
        handed = capture(command).stdout.replace("/mnt:", "").strip()
        assert handed == "", "what was handed to the build is not in the image"

        image, brought = (
            Path(described["image"]["path"]),
            Realization("venv", brought=(("base", described["image"]["path"]),)),
        )
        before = image.stat().st_mtime_ns
        assert started().wait(60) == 0 and image.stat().st_mtime_ns == before, "nothing is made again"
        stamp.unlink()
        assert started().wait(60) == 0 and stamp.exists() and image.stat().st_mtime_ns == before

        at = Realization("apptainer", brought=brought.brought)
        on_given_image = build(read("base", containers=tiny.containers), tiny.cache, realization=at)
        assert (
            on_given_image["image"]["sha256"] == described["image"]["sha256"]
            and on_given_image["digest"] != described["digest"]
        )
        failing = Realization("apptainer", brought=(("base", pytorch_image["image"]["path"]),))
        (tiny.containers / "base" / "selftest.py").write_text(
            SELFTEST.format(check="import a_package_that_it_lacks")
        )
        with pytest.raises(InputError, match="a_package_that_it_lacks") as failed:
            build(read("base", containers=tiny.containers), tiny.cache, realization=failing)
        assert failed.value.file == "containers/base/selftest.py"


def logs(tiny: Tiny) -> str:
    """Return the logs of all builds."""
    return "".join(log.read_text(errors="replace") for log in tiny.cache.rglob("build.log"))
