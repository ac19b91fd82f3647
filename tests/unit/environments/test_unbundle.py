"""A bundle is unpacked whole or not at all, wherever it was broken, and goes nowhere but to its places in the
cache.
"""

import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import CHECKOUT
from common.python import python_abi
from common.shell import capture
from environments.unbundle import Unpacked, unbundle
from support.bundles import WHEEL_FOLDER, Bundle, bundle, in_cache
from support.checkout import TEST_VARIABLES
from support.refusals import assert_refusal

MANIFEST = "bundle/small-local.json"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RINGSIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small(tmp_path: Path, cache: Path) -> Bundle:
    (tmp_path / "made").mkdir()
    return bundle(tmp_path / "made")


def unpacked(small: Bundle, **expected: str) -> Unpacked:
    return unbundle(small.tar, expected, small.checkout)


def refusal(small: Bundle, cache: Path, **expected: str) -> InputError:
    """The error with which it refuses, after which the cache is as it was."""
    before = in_cache(cache)
    with pytest.raises(InputError) as refused:
        unpacked(small, **expected)
    assert in_cache(cache) == before
    assert str(refused.value).isprintable() and str(small.tar) in str(refused.value)
    return refused.value


def retar(small: Bundle, change) -> None:
    """Write the bundle again, each member (entry, content) as `change` returns it: a list of such pairs."""
    with tarfile.open(small.pack()) as packed:
        members = [(entry, packed.extractfile(entry).read()) for entry in packed]
    with tarfile.open(small.tar, "w") as out:
        for entry, content in members:
            for changed, data in change(entry, content):
                changed.size = len(data)
                out.addfile(changed, io.BytesIO(data))


class TestAWholeBundle:
    def test_every_file_comes_to_its_place_and_what_is_there_stays(self, small: Bundle, cache: Path) -> None:
        small.pack()
        done = unpacked(small, study="small", site="local")
        files = in_cache(cache)
        assert json.loads(files.pop(MANIFEST)) == small.manifest()
        assert files == small.content()
        assert (done.n_placed, done.n_present, done.cache) == (9, 0, cache)
        before = {path: path.stat().st_ino for path in cache.rglob("*.whl")}
        (cache / "bundle/wheels/package_0-1.0-py3-none-any.whl").write_bytes(b"half")
        again = unpacked(small)
        assert (again.n_placed, again.n_present) == (1, 8)
        assert len({path for path, inode in before.items() if path.stat().st_ino == inode}) == len(before) - 1
        assert in_cache(cache).keys() - {MANIFEST} == files.keys()
        assert (
            in_cache(cache)["bundle/wheels/package_0-1.0-py3-none-any.whl"]
            == files["bundle/wheels/package_0-1.0-py3-none-any.whl"]
        )

    def test_the_sites_own_cache_is_found_from_where_make_looks(
        self, small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("RINGSIDE_CACHE")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        small.changes = {"cache": str(tmp_path / "scratch" / "ringside")}
        small.pack()
        unpacked(small)
        unpacked(small)
        looked = tmp_path / "home/.cache/ringside/bundle"
        assert len(list((looked / "wheels").iterdir())) == 5
        assert looked.resolve() == tmp_path / "scratch/ringside/bundle"
        looked.unlink()
        (looked / "wheels").mkdir(parents=True)
        with pytest.raises(InputError) as refused:
            unpacked(small)
        assert_refusal(refused.value, "two-caches", file=str(looked))

    def test_it_needs_nothing_but_python(self, small: Bundle, cache: Path) -> None:
        """Before there is a .venv: without site-packages."""
        small.changes = {"locks": {}}
        done = capture(
            [sys.executable, "-S", "ringside", "unbundle", small.pack(), "--site=local"],
            cwd=CHECKOUT,
            env={name: value for name, value in os.environ.items() if name not in TEST_VARIABLES},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == (
            f"ringside: {cache}: 9 files unpacked, 0 were present; 270.0 kB in all"
        )


class TestABrokenBundle:
    @pytest.mark.parametrize("place", [0.02, 0.3, 0.9])
    def test_an_altered_byte(self, small: Bundle, cache: Path, place: float) -> None:
        content = bytearray(small.pack().read_bytes())
        content[int(place * len(content))] ^= 1
        small.tar.write_bytes(content)
        assert refusal(small, cache).code in ("checksum-mismatch", "broken-bundle")

    @pytest.mark.parametrize("length", [0, 100, 700, 0.2, 0.5, 0.93])
    def test_a_truncated_file(self, small: Bundle, cache: Path, length: float) -> None:
        content = small.pack().read_bytes()
        small.tar.write_bytes(content[: int(length if length > 1 else length * len(content))])
        assert refusal(small, cache).code in ("broken-bundle", "missing-members", "no-bundle")

    def test_one_that_ends_between_two_files(self, small: Bundle, cache: Path) -> None:
        retar(small, lambda entry, data: [] if entry.name.startswith("wheels/") else [(entry, data)])
        error = refusal(small, cache)
        assert_refusal(error, "missing-members", "", [2, 9])
        assert len(error.got) == 2 and all(name.startswith("wheels/") for name in error.got)

    def test_something_else(self, small: Bundle, cache: Path) -> None:
        assert refusal(small, cache).code == "missing-file"
        small.tar.write_text("a page of a proxy\n")
        assert refusal(small, cache).code == "broken-bundle"
        with tarfile.open(small.tar, "w") as archive:
            archive.add(small.checkout, "checkout")
        assert_refusal(refusal(small, cache), "no-bundle", "", ["manifest.json"], file=str(small.tar))

    @pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
    def test_headers_without_end(self, small: Bundle, cache: Path, kind: bytes) -> None:
        info = tarfile.TarInfo("././@LongLink")
        info.type, info.size = kind, 512
        small.tar.write_bytes((info.tobuf(tarfile.GNU_FORMAT) + b"n".ljust(512, b"\0")) * 5000)
        assert refusal(small, cache).code == "broken-bundle"

    def test_a_file_twice_or_one_too_many(self, small: Bundle, cache: Path) -> None:
        retar(small, lambda entry, data: [(entry, data)] * (1 + entry.name.endswith(".sif")))
        assert_refusal(refusal(small, cache), "unlisted-member")


class TestWhereItMayWrite:
    @pytest.mark.parametrize(
        "name",
        [
            "/etc/passwd",
            "../outside",
            "bundle/wheels/../../outside",
            "bundle/wheels/..",
            "bundle/wheels/.hidden",
            "bundle/wheels/a/b",
            "bundle/small-local.json",
            "environments/pytorch/environment.json",
            "downloads/../bundle",
            "downloads/a b/c",
            "wheels/0123456789ab/a\nb",
            "wheels/short/a.whl",
        ],
    )
    def test_other_places_are_refused(self, small: Bundle, cache: Path, name: str) -> None:
        small.files[name] = small.files.pop(f"{WHEEL_FOLDER}/wheel.json")
        small.pack()
        assert_refusal(refusal(small, cache), "unsafe-name", "manifest.json")

    @pytest.mark.parametrize("key", ["study", "site"])
    def test_the_manifest_itself_has_a_place(self, small: Bundle, cache: Path, key: str) -> None:
        small.changes = {key: "../../outside"}
        small.pack()
        assert_refusal(refusal(small, cache), "unsafe-name", "manifest.json")

    @pytest.mark.parametrize(
        "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
    )
    def test_links_and_devices_are_refused(self, small: Bundle, cache: Path, kind: bytes) -> None:
        def change(entry: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
            if entry.name.endswith(".sif"):
                entry.type, entry.linkname = kind, "/etc/passwd"
                return [(entry, b"")]
            return [(entry, data)]

        retar(small, change)
        assert_refusal(refusal(small, cache), "unsafe-member")


class TestForWhomItIs:
    @pytest.mark.parametrize(
        ("changes", "code", "facts"),
        [
            (
                {"python_abi": "cp399-linux_x86_64"},
                "wrong-python",
                {"mentions": [python_abi(), "python3.99 ringside unbundle"]},
            ),
            (
                {"python_abi": "cp311-linux_riscv64"},
                "wrong-python",
                {"hint": "make it on a machine like this one"},
            ),
            ({"glibc": "9.1"}, "wrong-glibc", {"mentions": [platform.libc_ver()[1]]}),
            ({"format": 2}, "wrong-format", {"expected": "1"}),
            ({"locks": {"requirements.txt": "0" * 64}}, "checksum-mismatch", {"file": "requirements.txt"}),
            (
                {"locks": {"containers/pytorch/requirements.cuda.txt": "0" * 64}},
                "checksum-mismatch",
                {"file": "containers/pytorch/requirements.cuda.txt"},
            ),
            ({"cache": "scratch"}, "bad-pattern", {"mentions": ["RINGSIDE_CACHE=FOLDER"]}),
            ({"locks": []}, "broken-bundle", {"mentions": ["manifest.json"]}),
        ],
        ids=str,
    )
    def test_another_machine_or_lock_is_refused(
        self,
        small: Bundle,
        cache: Path,
        monkeypatch: pytest.MonkeyPatch,
        changes: dict,
        code: str,
        facts: dict,
    ) -> None:
        if "cache" in changes:
            monkeypatch.delenv("RINGSIDE_CACHE")
        small.changes = changes
        small.pack()
        assert_refusal(refusal(small, cache), code, **facts)

    def test_another_study_or_site_is_refused(self, small: Bundle, cache: Path) -> None:
        small.pack()
        assert_refusal(refusal(small, cache, study="large"), "wrong-study", "", ["large"])
        error = refusal(small, cache, study="small", site="plafrim")
        assert_refusal(error, "wrong-site", "", ["plafrim"])


@pytest.mark.parametrize("files", [1, 12, 30])
def test_killed_unbundle_leaves_no_partial_file_and_can_restart(
    tmp_path: Path, cache: Path, files: int
) -> None:
    """Killed once that many files of 40 are staged: none is in its place.

    Killed later, those in their places are whole.
    """
    (tmp_path / "made").mkdir()
    large = bundle(tmp_path / "made", count=40, size_bytes=500_000)
    large.changes = {"locks": {}}
    large.pack()
    command = [sys.executable, "-S", str(CHECKOUT / "ringside"), "unbundle", str(large.tar)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    staging = cache / "bundle" / ".unpacking"
    while not staging.is_dir() or len(os.listdir(staging)) < files:
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = {name: data for name, data in in_cache(cache).items() if "/.unpacking/" not in name}
    assert left.items() <= large.content().items() and MANIFEST not in left
    assert staging.is_dir() and not (cache / "bundle" / "wheels").exists()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    assert in_cache(cache).keys() == {*large.content(), MANIFEST} and not staging.exists()
    shutil.rmtree(tmp_path / "made")


def test_two_at_once_do_not_meet(small: Bundle, cache: Path) -> None:
    small.pack()
    (cache / "bundle").mkdir(parents=True)
    with subprocess.Popen(
        ["flock", cache / "bundle" / ".lock", "sh", "-c", "echo held; read _"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(InputError) as refused:
            unpacked(small)
        assert_refusal(refused.value, "busy", file=str(cache / "bundle"))
        holder.communicate(b"\n")
    assert unpacked(small).n_placed == 9
