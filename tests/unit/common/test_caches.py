"""Another user can neither plant files in a cache, nor be locked out of it by a umask."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from common.caches import PARTS, check_cache, check_trusted, find_untrusted, follow_modes
from common.errors import InputError
from common.files import CHECKOUT, hold_lock, write_json
from support.other_users import NOBODY, as_root, public_folder, run_as_nobody
from support.refusals import assert_refusal


@pytest.fixture
def cache():
    """A cache with an environment in it."""
    with public_folder() as folder:
        yield make_cache(folder)


def make_cache(top: Path) -> Path:
    cache = top / "cache"
    stamp = cache / "environments" / "pytorch" / "0123" / "environment.json"
    stamp.parent.mkdir(parents=True)
    stamp.write_text("{}")
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return cache


def stamp_in(cache: Path) -> Path:
    return cache / "environments" / "pytorch" / "0123" / "environment.json"


def refused(cache: Path) -> Path:
    with pytest.raises(InputError) as error:
        check_cache(cache)
        check_trusted(stamp_in(cache), cache)
    assert_refusal(error.value, "untrusted-cache")
    return Path(error.value.file)


def test_own_cache_is_trusted(cache):
    check_cache(cache)
    check_trusted(stamp_in(cache), cache)


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o775])
@pytest.mark.parametrize("part", ["", "environments", "environments/pytorch", "environments/pytorch/0123"])
def test_folder_that_others_may_write_to_is_refused(cache, part, mode):
    os.chown(cache / part, -1, NOBODY if os.geteuid() == 0 else -1)
    (cache / part).chmod(mode)
    if os.geteuid() != 0 and mode == 0o775:
        pytest.skip("its group is this user's own")
    assert refused(cache) == cache / part


@pytest.mark.parametrize("mode", [0o666, 0o646])
def test_file_that_others_may_write_to_is_refused(cache, mode):
    stamp_in(cache).chmod(mode)
    assert refused(cache) == stamp_in(cache)


@as_root
@pytest.mark.parametrize(
    "part",
    [
        "environments",
        "environments/pytorch",
        "environments/pytorch/0123",
        "environments/pytorch/0123/environment.json",
    ],
)
def test_files_of_another_user_are_refused(cache, part):
    os.chown(cache / part, NOBODY, NOBODY)
    assert refused(cache) == cache / part


@as_root
def test_planted_folder_of_a_sticky_cache_is_refused(cache):
    cache.chmod(0o1777)
    check_trusted(stamp_in(cache), cache)
    done = run_as_nobody("os.mkdir(sys.argv[2])", cache / "downloads")
    assert done.returncode == 0, done.stderr
    assert refused(cache) == cache / "downloads"


@as_root
def test_planted_cache_in_a_folder_of_all_users_is_refused(cache):
    everybody = cache.parent / "scratch"
    everybody.mkdir()
    everybody.chmod(0o1777)
    done = run_as_nobody("os.makedirs(sys.argv[2])", everybody / "cache" / "environments")
    assert done.returncode == 0, done.stderr
    with pytest.raises(InputError) as error:
        check_cache(everybody / "cache")
    assert_refusal(error.value, "untrusted-cache", file=str(everybody / "cache"))


@as_root
def test_planted_link_is_refused(cache):
    cache.chmod(0o1777)
    done = run_as_nobody("os.symlink('/usr/lib', sys.argv[2])", cache / "wheels")
    assert done.returncode == 0, done.stderr
    assert refused(cache) == cache / "wheels"


@as_root
def test_named_cache_of_another_user_is_trusted(cache):
    for path in (cache, *cache.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    check_cache(cache)
    check_trusted(stamp_in(cache), cache)
    os.chown(stamp_in(cache), 4711, NOBODY)
    assert refused(cache) == stamp_in(cache)


@as_root
def test_group_cache_trusts_its_group(cache):
    for path in (cache, *cache.rglob("*")):
        os.chown(path, 0, NOBODY)
        path.chmod(0o2775 if path.is_dir() else 0o664)
    os.chown(stamp_in(cache), 4711, NOBODY)
    check_cache(cache)
    check_trusted(stamp_in(cache), cache)
    os.chown(stamp_in(cache), 4711, 4711)  # of another group
    assert refused(cache) == stamp_in(cache)


def test_nothing_below_a_private_folder_is_checked(cache):
    stamp_in(cache).parent.chmod(0o777)
    cache.chmod(0o700)
    check_cache(cache)
    check_trusted(stamp_in(cache), cache)


def test_absent_cache_is_trusted(tmp_path):
    assert find_untrusted(tmp_path / "none" / "environments", tmp_path / "none") is None


@pytest.mark.parametrize(
    ("mode", "umask", "folder", "file"),
    [
        (0o755, 0o077, 0o755, 0o644),
        (0o2775, 0o077, 0o2775, 0o664),
        (0o700, 0o000, 0o700, 0o600),
        (0o777, 0o000, 0o755, 0o644),
        (0o775, 0o000, 0o755, 0o644),
    ],
)
def test_files_follow_the_mode_of_the_cache(tmp_path, mode, umask, folder, file):
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    code = (
        "from common.caches import follow_modes; from common.files import write_json; from pathlib import "
        "Path\n"
    )
    code += (
        f"import os, sys; os.umask({umask}); c = Path(sys.argv[1])\nwith follow_modes(c): write_json(c / "
        "'a' / 'b.json', 1)"
    )
    subprocess.run(
        [sys.executable, "-c", code, cache],
        check=True,
        env={"PYTHONPATH": str(CHECKOUT / "workflow/scripts")},
    )
    modes = [stat.S_IMODE((cache / name).stat().st_mode) for name in ("a", "a/b.json")]
    assert modes == [folder | (mode & 0o2000), file]


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o755), (0o000, 0o755), (0o077, 0o700)])
def test_new_cache_is_writable_for_its_user_alone(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        with follow_modes(tmp_path / "above" / "cache"):
            pass
        assert os.umask(umask) == umask, "it is as before"
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "above" / "cache").stat().st_mode) == mode


def test_replaced_file_keeps_its_mode(tmp_path):
    write_json(tmp_path / "a.json", 1)
    (tmp_path / "a.json").chmod(0o644)
    before = os.umask(0o077)
    try:
        write_json(tmp_path / "a.json", 2)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o644


@as_root
def test_lock_of_another_user_can_be_held(cache):
    with hold_lock(cache / ".lock", lambda: None):
        pass
    code = (
        "from common.files import hold_lock; from pathlib import Path\nwith hold_lock(Path(sys.argv[2]), lambda: "
        "print('waits')): print('held')"
    )
    done = run_as_nobody(code, cache / ".lock")
    assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr


def test_every_part_of_a_cache_is_checked(cache):
    for part in PARTS:
        (cache / part).mkdir(exist_ok=True)
        (cache / part).chmod(0o777)
        assert refused(cache) == cache / part
        (cache / part).chmod(0o755)
