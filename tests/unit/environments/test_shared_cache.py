"""Nothing that another user could have put into a cache is executed, installed or trained on."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.caches import follow_modes
from common.errors import InputError
from common.files import digest_file, write_json
from datasets.check import check_data
from datasets.fetch import Store, archive
from datasets.identity import data_files
from datasets.prepare import prepare
from declared.environments import read
from environments import bundled
from environments.build import build
from environments.built import read_built
from environments.unbundle import unbundle
from environments.wheels import read_cached_wheel
from support.bundles import Bundle
from support.other_users import NOBODY, as_root, public_folder, run_as_nobody


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with public_folder() as folder:
        monkeypatch.setenv("RINGSIDE_CACHE", str(folder / "cache"))
        (folder / "cache").mkdir()
        (folder / "cache").chmod(0o755)
        before = os.umask(0o022)
        yield folder / "cache"
        os.umask(before)


def write_stamp(cache: Path) -> Path:
    stamp = cache / "environments" / "pytorch" / "0123" / "environment.json"
    content = {"deployment": "venv", "python": {"executable": "/bin/sh"}, "image": None, "prefixes": []}
    write_json(stamp, content)
    return stamp


def use_environment(cache: Path) -> None:
    read_built(write_stamp(cache))


def use_wheel(cache: Path) -> None:
    folder = cache / "wheels" / "0123"
    folder.mkdir(parents=True)
    (folder / "a.whl").touch()
    write_json(folder / "wheel.json", {"file": "a.whl", "sha256": digest_file(folder / "a.whl")})
    assert read_cached_wheel(folder) is not None


def use_dataset(cache: Path) -> None:
    folder = cache / "datasets" / "digits" / "0123"
    prepare("digits", folder)
    check_data(folder, "digits")


def use_image(cache: Path) -> None:
    image = cache / "bundle" / "images" / bundled.image_name("pytorch", "0" * 64)
    image.parent.mkdir(parents=True)
    image.touch()
    assert bundled.find_image("pytorch", "0" * 64) == image


def use_archive(cache: Path) -> None:
    folder = cache / "downloads" / "ours"
    folder.mkdir(parents=True)
    (folder / "a.gz").write_bytes(b"a")
    store = Store(cache / "downloads", None, None, "site", cache.parent / "table.yaml")
    assert archive("ours", {"name": "a.gz", "bytes": 1, "unpacked_bytes": 1}, store).path == folder / "a.gz"


USES = {
    "environments": use_environment,
    "wheels": use_wheel,
    "datasets": use_dataset,
    "bundle": use_image,
    "downloads": use_archive,
}


@pytest.mark.parametrize("part", USES)
def test_what_its_user_made_is_used(cache: Path, part: str) -> None:
    USES[part](cache)


@as_root
@pytest.mark.parametrize("part", USES)
def test_what_another_user_planted_is_refused(cache: Path, part: str) -> None:
    cache.chmod(0o1777)
    assert run_as_nobody("os.mkdir(sys.argv[2])", cache / part).returncode == 0
    with pytest.raises(InputError) as refused:
        USES[part](cache)
    assert (refused.value.code, refused.value.file) == ("untrusted-cache", str(cache / part))


@pytest.mark.parametrize("part", USES)
def test_what_anybody_may_change_is_refused(cache: Path, part: str) -> None:
    (cache / part).mkdir()
    (cache / part).chmod(0o777)
    with pytest.raises(InputError) as refused:
        USES[part](cache)
    assert (refused.value.code, refused.value.file) == ("untrusted-cache", str(cache / part))


@as_root
@pytest.mark.parametrize(
    "use", [lambda cache: build(read("pytorch"), cache), lambda cache: unbundle(packed(cache), {})]
)
def test_nothing_is_made_in_an_untrusted_cache(cache: Path, use: Callable[[Path], object]) -> None:
    os.chown(cache, NOBODY, NOBODY)
    cache.chmod(0o777)
    with pytest.raises(InputError) as refused:
        use(cache)
    assert refused.value.code == "untrusted-cache"
    assert list(cache.iterdir()) == []


def packed(cache: Path) -> Path:
    bundle = Bundle(cache.parent, {}, {"locks": {}})
    bundle.checkout.mkdir()
    (bundle.checkout / "requirements.txt").touch()
    return bundle.pack()


@as_root
def test_another_user_can_use_what_a_private_umask_made(cache: Path) -> None:
    os.umask(0o077)
    folder = cache / "datasets" / "digits" / "0123"
    with follow_modes(cache):
        prepare("digits", folder)
        stamp = write_stamp(cache)
    code = "from pathlib import Path\nfor name in sys.argv[2:]: Path(name).read_bytes()\nprint('read')"
    done = run_as_nobody(code, stamp, *data_files(folder, "digits"))
    assert done.stdout == "read\n", done.stderr


@as_root
def test_archive_of_a_cache_that_others_fill_is_used(cache: Path) -> None:
    use_archive(cache)
    used = os.geteuid()
    os.seteuid(NOBODY)
    try:
        store = Store(cache / "downloads", None, None, "site", cache.parent / "table.yaml")
        assert archive("ours", {"name": "a.gz", "bytes": 1, "unpacked_bytes": 1}, store).sha256
    finally:
        os.seteuid(used)
