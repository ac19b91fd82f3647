"""Output of `ringside models`, for shipped models and for a broken one."""

import json
import re
from typing import Any

import pytest

from common.errors import InputError
from models import listing, named
from models.named import models


def cells(text: str, model: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith(f"{model} ")]


def test_dashes_are_explained_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    listing.show_models(["lenet-5"])
    text = capsys.readouterr().out
    assert cells(text, "lenet-5")[0] == ["lenet-5", "8x8x1", "10", *"–––––"]
    (reason,) = [line for line in text.splitlines() if line.startswith("  model")]
    assert reason.startswith("  model lenet-5 ") and {"8 x 8", "5 x 5", "2 x 2"} <= set(
        re.findall(r"\d x \d", reason)
    )


def test_only_models_with_two_stems_name_one() -> None:
    two = {name for name in models() if named.has_small_stem(name)}
    residual = {"resnet-18", "resnet-34", "resnet-50", "resnet-101"}
    assert two == residual | {"efficientnet-b0", "inception-v3", "vit-b-16", "vit-l-16", "alexnet"}
    stems = [line[3] for line in cells(listing.listing(["resnet-18"]), "resnet-18")]
    assert stems == ["small"] * 4 + ["original"]
    assert cells(listing.listing(["vgg-16"]), "vgg-16")[-1][3] == "138,357,544"


def test_options_choose_other_images(capsys: pytest.CaptureFixture[str]) -> None:
    listing.show_models(["resnet-50"], image="96x48x3", classes=7)
    (row,) = cells(capsys.readouterr().out, "resnet-50")
    model = named.graph("resnet-50", (96, 48, 3), 7)
    assert row[1:6] == ["96x48x3", "7", "original", f"{model.parameters:,}", f"{model.macs / 1e6:.1f}"]


def test_models_of_sequences_are_listed_for_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    listing.show_models(["gpt-nano", "rnn-text"], tokens="12:300", classes=7)
    text = capsys.readouterr().out
    model = named.graph("gpt-nano", (12,), 300, 300, "next")
    assert cells(text, "gpt-nano")[0][1:4] == ["12:300", "300", f"{model.parameters:,}"]
    assert cells(text, "rnn-text")[0][1:3] == ["12:300", "7"]
    listing.show_models(tokens="12:300")
    assert not cells(capsys.readouterr().out, "vgg-16"), "only what takes them"
    listing.show_models(tokens="39:260")
    assert [row[1:3] for row in cells(capsys.readouterr().out, "dlrm")] == [["39:260", "2"]]
    listing.show_models(["unet", "dlrm"], image="32x64x3", classes=3)
    text = capsys.readouterr().out
    assert cells(text, "unet")[0][1:3] == ["32x64x3", "3"] and cells(text, "dlrm")[0][3] == listing.DASH


@pytest.mark.parametrize(
    ("options", "code", "got"),
    [
        ({"names": ["resnet"]}, "unknown-name", "resnet"),
        ({"classes": 1}, "out-of-range", 1),
        ({"image": "big"}, "bad-pattern", "big"),
        ({"tokens": "12x300"}, "bad-pattern", "12x300"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], code: str, got: object) -> None:
    with pytest.raises(InputError) as refused:
        listing.show_models(**options)
    assert (refused.value.code, refused.value.got) == (code, got)


def test_json_has_numbers_or_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    listing.show_models(["lenet-5"], as_json=True)
    small, *_, large = json.loads(capsys.readouterr().out)
    assert (small["sample"], "reason" in small, "parameters" in small) == ("8x8x1", True, False)
    model = named.graph("lenet-5", (224, 224, 3), 1000)
    assert (large["parameters"], large["gradient_bytes"], large["classes"]) == (
        model.parameters,
        model.gradient_bytes,
        1000,
    )


def test_user_models_are_listed_without_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    own = {"ours": "a net", "theirs": "another one"}
    listing.show_models(own=own)
    assert capsys.readouterr().out.endswith(
        f"{listing.UNKNOWN_SIZE}:\n  ours: a net\n  theirs: another one\n"
    )
    listing.show_models(["ours", "vgg-16"], own=own, as_json=True)
    *_, last = rows = json.loads(capsys.readouterr().out)
    assert last == {"model": "ours", "title": "a net", "reason": listing.UNKNOWN_SIZE}
    assert {row["model"] for row in rows} == {"ours", "vgg-16"}
    listing.show_models(tokens="12:300", own=own)
    assert "ours" not in capsys.readouterr().out
    with pytest.raises(InputError) as refused:
        listing.show_models(["our"], own=own)
    assert (refused.value.code, refused.value.suggestion) == ("unknown-name", "ours")
