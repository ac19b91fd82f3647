"""Archives are fetched once, completely and verified, also from faulty servers."""

import hashlib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import yaml

from common.errors import SYSTEM_CODE, InputError
from common.files import CHECKOUT
from datasets.fetch import archive, lock_archives
from datasets.lock import digests
from datasets.transfer import RetryPolicy
from support.file_server import (
    claiming,
    cut,
    endless,
    other_content,
    refusing_ranges,
    stall,
    status,
    without_ranges,
)
from support.refusals import assert_refusal

CONTENT = np.random.default_rng(1).bytes(1_000_000)
CHANGED_CONTENT = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])


@pytest.fixture
def file(server, declare):
    """The entry of a file that the server has at /public/a.gz, and at /mirror/a.gz."""
    server.files["/mirror/a.gz"] = CONTENT
    url = server.serve("/public/a.gz", CONTENT)
    return declare("a.gz", CONTENT, url=url, mirrors=[server.url("/mirror/a.gz")])


def fetch_content(file, store):
    got = archive("ours", file, store)
    assert got.path.read_bytes() == CONTENT
    left = [path.name for path in got.path.parent.iterdir()]
    assert sorted(left) == [".a.gz.lock", "a.gz", "a.gz.origin.json"], "no partial file is left"
    return got


def fetch_and_lock(file, store):
    """Fetch an archive and record its checksum."""
    got = fetch_content(file, store)
    lock_archives("ours", {got.path.name: got}, store)
    return got


def refusal(file, store) -> InputError:
    with pytest.raises(InputError) as refused:
        archive("ours", file, store)
    assert str(refused.value).isprintable()
    return refused.value


def test_a_file_is_fetched_once(server, file, store_at, capsys):
    got = fetch_content(file, store_at())
    assert got.origin == server.url("/public/a.gz") and got.sha256 == digests(got.path)[1]
    begun, ended = capsys.readouterr().err.splitlines()
    assert all(re.search(r"ours: a\.gz: .*\b1\.0 MB", line) for line in (begun, ended))
    assert "http://127.0.0.1" in begun
    assert fetch_content(file, store_at()).origin == server.url("/public/a.gz")
    assert len(server.requests) == 1


def test_progress_is_reported(server, file, store_at, capsys):
    fetch_content(file, store_at(retry_policy=RetryPolicy(progress_s=0)))
    between = capsys.readouterr().err.splitlines()[1:-1]
    assert between and all(re.search(r"[\d.]+ [kM]B .*\b1\.0 MB", line) for line in between)


@pytest.mark.parametrize("fault", [cut(300_000), stall(300_000)])
def test_broken_download_is_resumed(server, file, store_at, fault):
    server.plan["/public/a.gz"].append(fault)
    fetch_content(file, store_at())
    first, second = server.ranges("/public/a.gz")
    assert first is None
    assert second == "bytes=300000-", "received bytes are not requested again"


@pytest.mark.parametrize("refusing", [without_ranges, refusing_ranges])
def test_server_without_ranges_restarts_the_download(server, file, store_at, refusing):
    server.plan["/public/a.gz"] += [cut(300_000), refusing, refusing]
    got = fetch_content(file, store_at())
    assert got.origin == server.url("/public/a.gz")


@pytest.mark.parametrize("fault", [status(503), status(429), cut(0)])
def test_transient_errors_are_retried(server, file, store_at, fault):
    server.plan["/public/a.gz"] += [fault, fault]
    assert fetch_content(file, store_at()).origin == server.url("/public/a.gz")
    assert len(server.ranges("/public/a.gz")) == 3


@pytest.mark.parametrize(
    ("fault", "requests"),
    [
        (status(404), 1),
        (other_content(CHANGED_CONTENT), 1),
        (claiming(1_000_001), 1),
        (endless, 1),
        (status(503), 3),
    ],
)
def test_next_address_is_tried(server, file, store_at, fault, requests):
    server.plan["/public/a.gz"] += [fault] * 9
    got = fetch_content(file, store_at())
    assert got.origin == server.url("/mirror/a.gz")
    assert len(server.ranges("/public/a.gz")) == requests


def test_error_lists_the_answer_of_each_address(server, file, store_at):
    file = {**file, "mirrors": [*file["mirrors"], server.url("/nowhere"), "http://127.0.0.1:1/a.gz"]}
    server.plan["/public/a.gz"] += [status(503)] * 3
    server.plan["/mirror/a.gz"] += [other_content(CHANGED_CONTENT)]
    error = refusal(file, store_at())
    md5 = hashlib.md5(CHANGED_CONTENT, usedforsecurity=False).hexdigest()
    answers = {
        server.url("/public/a.gz"): "503 Service Unavailable (tried 3 times)",
        server.url("/mirror/a.gz"): f"its MD5 is {md5}; the entry says {file['md5']}",
        server.url("/nowhere"): "404 Not Found",
        "http://127.0.0.1:1/a.gz": "the connection failed (Connection refused) (tried 3 times)",
    }
    advice = ["snakemake datasets", "config/sites/here.yaml", "datasets: {folder: /PATH}"]
    assert_refusal(error, "not-fetched", "", ["a.gz", *answers, *advice], file="ours", got=answers)
    assert not [path for path in store_at().downloads.rglob("*") if path.suffix == ".gz"]


def test_a_slow_server_is_given_up(server, file, store_at):
    server.plan["/public/a.gz"] += [stall(0)] * 3
    started = time.monotonic()
    assert fetch_content(file, store_at()).origin == server.url("/mirror/a.gz")
    assert 1 < time.monotonic() - started < 60


def test_concurrent_calls_fetch_once(server, file, store_at, capsys):
    server.plan["/public/a.gz"].append(
        lambda handler, content: (time.sleep(0.3), without_ranges(handler, content))
    )
    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(lambda _: archive("ours", file, store_at()), range(2)))
    assert len(server.requests) == 1 and got[0] == got[1]
    assert "ours: a.gz" in capsys.readouterr().err, "who waits says so"


def test_a_file_that_was_spoilt_in_the_cache_is_fetched_again(server, file, store_at, capsys):
    got = fetch_content(file, store_at())
    got.path.write_bytes(CHANGED_CONTENT)
    fetch_content(file, store_at())
    assert (
        len(server.requests) == 2
        and hashlib.md5(CHANGED_CONTENT, usedforsecurity=False).hexdigest() in capsys.readouterr().err
    )


def test_the_mirror_of_the_site_is_tried_first(server, file, store_at):
    server.files["/here/ours/a.gz"] = CONTENT
    assert fetch_content(file, store_at(mirror=server.url("/here/"))).origin == server.url("/here/ours/a.gz")
    assert [path for path, _ in server.requests] == ["/here/ours/a.gz"]


def test_public_addresses_are_tried_if_the_mirror_lacks_the_file(server, file, store_at):
    assert fetch_content(file, store_at(mirror=server.url("/here"))).origin == server.url("/public/a.gz")


@pytest.mark.parametrize("place", ["ours/a.gz", "a.gz"])
def test_archives_in_the_sites_folder_are_used_in_place(server, file, store_at, tmp_path, place):
    place_path = tmp_path / "archives" / place
    place_path.parent.mkdir(parents=True)
    place_path.write_bytes(CONTENT)
    got = archive("ours", file, store_at(folder=tmp_path / "archives"))
    assert got.path == place_path and got.origin == str(place_path)
    assert not server.requests and not store_at().downloads.exists()


def test_missing_or_wrong_file_in_the_folder_is_refused(file, store_at, tmp_path):
    store = store_at(folder=tmp_path / "archives")
    error, path = refusal(file, store), f"{tmp_path}/archives/ours/a.gz"
    assert_refusal(error, "missing-file", "datasets.folder", [path], file="config/sites/here.yaml")
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives" / "a.gz").write_bytes(CHANGED_CONTENT)
    error, md5 = refusal(file, store), hashlib.md5(CHANGED_CONTENT, usedforsecurity=False).hexdigest()
    assert_refusal(error, "checksum-mismatch", "", [md5, file["md5"]], file=f"{tmp_path}/archives/a.gz")
    assert (tmp_path / "archives" / "a.gz").read_bytes() == CHANGED_CONTENT, "a person's file is left alone"


def test_a_file_address_is_copied(declare, store_at, tmp_path):
    (tmp_path / "with space.gz").write_bytes(CONTENT)
    file = declare("a.gz", CONTENT, url=(tmp_path / "with space.gz").as_uri(), md5=None)
    fetch_content(file, store_at())
    missing = declare("b.gz", CONTENT, url=(tmp_path / "gone").as_uri())
    answer = {missing["url"]: "No such file or directory"}
    assert_refusal(refusal(missing, store_at()), "not-fetched", "", ["snakemake datasets"], got=answer)
    for url in ("file://[/x", "file:///var/%00x", f"file://elsewhere.example{tmp_path}/with%20space.gz"):
        error = refusal(declare("b.gz", CONTENT, url=url), store_at())
        assert_refusal(error, "not-fetched", "", [url])
        assert list(error.got) == [url]


def test_first_checksum_is_locked(server, declare, store_at):
    file = declare("a.gz", CONTENT, url=server.serve("/a.gz", CONTENT), md5=None)
    got = fetch_and_lock(file, store_at())
    assert yaml.safe_load(store_at().lock("ours").read_text()) == {"ours": {"a.gz": got.sha256}}
    got.path.unlink()
    server.files["/a.gz"] = CHANGED_CONTENT
    error, lock = refusal(file, store_at()), store_at().lock("ours")
    assert_refusal(error, "not-fetched", "", [lock, got.sha256])
    assert "snakemake datasets" not in error.hint
    assert not got.path.exists(), "what is not the locked file is not kept"


@pytest.mark.parametrize(
    ("key", "declared", "actual"),
    [
        ("md5", "0" * 32, hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()),
        ("sha256", "0" * 64, hashlib.sha256(CONTENT).hexdigest()),
        ("bytes", 999_999, 1_000_000),
        ("bytes", 1_000_001, 1_000_000),
    ],
)
def test_wrong_entry_is_reported_with_file_and_key(
    server, declare, store_at, tmp_path, key, declared, actual
):
    file = declare("a.gz", CONTENT, url=server.serve("/a.gz", CONTENT), **{key: declared})
    error = refusal(file, store_at())
    assert_refusal(error, "not-fetched", "", [actual, declared])
    assert error.hint == f"if that is the right file, correct {key} of a.gz in {tmp_path}/table.yaml (ours)"
    (tmp_path / "a.gz").write_bytes(CONTENT)
    error = refusal(file, store_at(folder=tmp_path))
    code = "wrong-size" if key == "bytes" else "checksum-mismatch"
    assert_refusal(
        error, code, "", [actual, declared, key, f"{tmp_path}/table.yaml"], file=str(tmp_path / "a.gz")
    )


def test_a_users_own_archives_have_a_lock_of_their_own(store_at):
    assert store_at(table=None).lock("ours") == CHECKOUT / "config" / "datasets.lock.yaml"
    assert store_at(table=None).lock("cifar-10").name == "table.lock.yaml"


def test_lock_keeps_its_entries(server, declare, store_at):
    store = store_at()
    store.lock("ours").write_text(yaml.safe_dump({"theirs": {"x": "0" * 64}, "ours": {"b.gz": "1" * 64}}))
    got = fetch_and_lock(declare("a.gz", CONTENT, url=server.serve("/a.gz", CONTENT)), store)
    assert yaml.safe_load(store.lock("ours").read_text()) == {
        "theirs": {"x": "0" * 64},
        "ours": {"b.gz": "1" * 64, "a.gz": got.sha256},
    }


def test_entry_of_another_process_is_not_replaced(server, declare, store_at):
    got = fetch_content(declare("a.gz", CONTENT, url=server.serve("/a.gz", CONTENT)), store_at())
    lock_text = yaml.safe_dump({"ours": {"a.gz": "1" * 64}})
    store_at().lock("ours").write_text(lock_text)
    with pytest.raises(InputError) as refused:
        lock_archives("ours", {"a.gz": got}, store_at())
    assert_refusal(refused.value, "checksum-mismatch", "a.gz", ["1" * 64], file="ours", got=got.sha256)
    assert store_at().lock("ours").read_text() == lock_text


def test_read_only_checkout_warns(server, file, store_at, tmp_path, capsys):
    (tmp_path / "no-folder").write_text("a file where the lock's folder would be")
    store = store_at(table=tmp_path / "no-folder" / "table.yaml")
    fetch_and_lock(file, store)
    assert hashlib.sha256(CONTENT).hexdigest() in capsys.readouterr().err


@pytest.mark.parametrize("text", ["ours: {a.gz: short}", "ours: 3", "[1]"])
def test_a_broken_lock_is_refused_before_anything_is_fetched(server, file, store_at, text):
    store_at().lock("ours").write_text(text)
    assert refusal(file, store_at()).file == str(store_at().lock("ours")) and not server.requests


def test_a_cache_that_cannot_be_written_to_is_one_line(file, store_at, tmp_path):
    (tmp_path / "cache").write_text("a file where the cache would be")
    assert refusal(file, store_at()).code == SYSTEM_CODE


def test_redirects_stay_with_http(server, declare, store_at, tmp_path):
    (tmp_path / "secret").write_bytes(CONTENT)
    away = status(302, Location=(tmp_path / "secret").as_uri())
    file = declare("a.gz", CONTENT, url=server.serve("/a.gz", CONTENT, away))
    assert refusal(file, store_at()).code == "not-fetched"
    assert not Path(store_at().downloads / "ours" / "a.gz").exists()


SECRET = "s3cr3t-0f-0urs"  # noqa: S105


def add_password(url: str) -> str:
    return url.replace("://", f"://name:{SECRET}@")


@pytest.mark.parametrize("answers", [(), (status(401), status(401)), (cut(10), cut(10), cut(10))])
def test_password_of_a_mirror_is_shown_nowhere(server, store_at, declare, capfd, answers):
    if answers:
        server.serve("/mirror/ours/a.gz", CONTENT, *answers)
    store = store_at(mirror=add_password(server.url("/mirror")))
    with pytest.raises(InputError) as error:
        archive("ours", declare("a.gz", CONTENT, url=server.url(f"/none?token={SECRET}")), store)
    assert_refusal(error.value, "not-fetched")
    assert SECRET not in str(error.value) + capfd.readouterr().err
    assert "authorization" in server.requests[0][1], "it was used"


def test_password_of_a_mirror_is_not_kept(server, store_at, declare):
    server.serve("/mirror/ours/a.gz", CONTENT)
    store = store_at(mirror=add_password(server.url("/mirror")))
    origin = archive("ours", declare("a.gz", CONTENT), store).origin
    origins = "".join(file.read_text() for file in store.downloads.rglob("*.json"))
    assert SECRET not in origin + origins and "/mirror/ours/a.gz" in origins
