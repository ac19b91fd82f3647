"""An environment's digest is its content, and a wrong description is refused in one line."""

import os

import pytest

from common.errors import InputError
from declared.environments import names, read, tools
from environments import identity
from environments.identity import environment_digest, environment_stamp, parent_stamps
from support.refusals import assert_refusal


def digests(tiny, variant="cpu"):
    return [environment_digest(name, variant, containers=tiny.containers) for name in ("base", "over")]


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


CHANGES = {".py": "CHANGED = True\n"}  # of a program counts what it does; of other files every byte


@pytest.mark.parametrize("file", ["requirements.cpu.txt", "selftest.py"])
def test_change_of_a_parents_file_reaches_its_child(tiny, file):
    before = digests(tiny)
    path = tiny.containers / "base" / file
    path.write_text(path.read_text() + CHANGES.get(path.suffix, "\n"))
    after = digests(tiny)
    assert before[0] != after[0]
    assert before[1] != after[1]


@pytest.mark.parametrize("file", ["requirements.cpu.txt", "requirements.build.txt", "selftest.py"])
def test_change_of_a_childs_file_leaves_its_parent(tiny, file):
    before = digests(tiny)
    path = tiny.containers / "over" / file
    path.write_text(path.read_text() + CHANGES.get(path.suffix, "\n"))
    after = digests(tiny)
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_a_patch_and_a_flag_change_the_digest(tiny):
    file = tiny.containers / "over" / "environment.yaml"
    seen = {digests(tiny)[1]}
    edit(file, "replace: patched", "replace: Patched")
    seen.add(digests(tiny)[1])
    edit(file, "{parent}/tiny", "{parent}/small")
    seen.add(digests(tiny)[1])
    assert len(seen) == 3


def test_dates_comments_and_other_locks_leave_digests_alone(tiny):
    before = digests(tiny)
    for path in tiny.containers.rglob("*.*"):
        os.utime(path, (1, 1))
    edit(tiny.containers / "base" / "environment.yaml", "variables", "# a comment\nvariables")
    edit(tiny.containers / "base" / "requirements.cuda.txt", "tiny", "Tiny")
    assert digests(tiny) == before


def test_variant_python_and_layout_change_the_digest(tiny, monkeypatch):
    seen = {digests(tiny)[0], digests(tiny, "cuda")[0]}
    monkeypatch.setattr(identity, "python_abi", lambda: "cp399-linux_x86_64")
    seen.add(digests(tiny)[0])
    monkeypatch.setattr(identity, "LAYOUT", 999)
    seen.add(digests(tiny)[0])
    assert len(seen) == 4


def test_the_stamp_has_the_digest_in_its_path(tiny):
    stamp = environment_stamp("/cache", "base", containers=tiny.containers)
    assert str(stamp) == f"/cache/environments/base/{digests(tiny)[0][:12]}/environment.json"
    assert parent_stamps("/cache", "over", containers=tiny.containers) == [str(stamp)]
    assert parent_stamps("/cache", "base", containers=tiny.containers) == []


def test_the_shipped_descriptions_are_read():
    for name in names():
        if read(name).origin != "site":
            environment_digest(name)
    assert names() == [
        "deepspeed",
        "flexflow",
        "horovod-pytorch",
        "horovod-tensorflow",
        "jax",
        "lbann",
        "pytorch",
        "tarantella",
        "tensorflow",
    ]
    assert tools() == ["chakra", "extrap", "planner"]


@pytest.mark.parametrize(
    ("old", "new", "code", "key", "facts"),
    [
        (
            "selftest_limit_s",
            "selftest_limit",
            "unknown-key",
            "selftest_limit",
            {"got": "selftest_limit", "suggestion": "selftest_limit_s"},
        ),
        ("selftest_limit_s: 30", "selftest_limit_s: 0", "out-of-range", "selftest_limit_s", {"got": 0}),
        ("sha256: ", "sha256: 0", "bad-pattern", "sources.0.sha256", {}),
        ("patches:", "patchs:", "unknown-key", "sources.0.patchs", {"suggestion": "patches"}),
        ("why: to see that it is done", "", "missing-key", "sources.0.patches.0.why", {}),
        ('version: "1.0"', "version: latest", "bad-pattern", "sources.0.version", {"got": "latest"}),
        (
            "parent: base",
            "parent: over",
            "circular-parents",
            "parent",
            {"got": "over", "mentions": ["'over'"]},
        ),
        ("parent: base", "parent: basis", "unknown-name", "", {"got": "basis", "suggestion": "base"}),
        ("parent: base", "", "missing-key", "sources", {"mentions": ["'parent'"]}),
    ],
)
def test_wrong_description_is_refused_with_its_key(tiny, old, new, code, key, facts):
    edit(tiny.containers / "over" / "environment.yaml", old, new)
    with pytest.raises(InputError) as refused:
        read("over", containers=tiny.containers)
    assert_refusal(refused.value, code, key, **facts)
    assert refused.value.file in (f"{tiny.containers}/over/environment.yaml", "environment")


def test_an_absent_lock_is_named(tiny):
    (tiny.containers / "base" / "requirements.cpu.txt").unlink()
    with pytest.raises(InputError) as refused:
        environment_digest("base", containers=tiny.containers)
    lock = tiny.containers / "base" / "requirements.cpu.txt"
    assert str(refused.value) == f"{lock}: no such file; the environment 'base' needs it"
    assert refused.value.code == "missing-file"
