"""The gallery has a valid example of every kind of figure, and its pictures are what the examples draw."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from common.errors import InputError
from declared.products.figure_kinds import KINDS
from figures import gallery

NO_PICTURE = ["energy", "power"]
LARGEST_BYTES = 120_000


@pytest.fixture(scope="module")
def examples():
    return list(gallery.examples())


def test_every_kind_has_an_example_in_the_order_of_the_table(examples):
    assert [example.spec.kind for example in examples] == list(KINDS)


def test_a_kind_has_a_small_picture_where_a_campaign_fills_it(examples):
    assert [example.spec.kind for example in examples if example.picture is None] == NO_PICTURE
    pictures = [example.picture for example in examples if example.picture]
    for example in examples:
        if example.picture:
            assert example.picture.name == f"{example.spec.kind}.png"
            assert 0 < example.picture.stat().st_size <= LARGEST_BYTES, example.picture
    assert sorted(pictures) == sorted(pictures[0].parent.glob("*")), "no picture is left over"


@pytest.mark.parametrize("kind", ["timeline", "shares"])
def test_a_picture_is_what_its_lines_draw_today(kind, examples, tmp_path):
    example = next(example for example in examples if example.spec.kind == kind)
    again = replace(example, picture=tmp_path / "again.png")
    gallery.make(again, tmp_path)
    committed, redrawn = (
        np.asarray(Image.open(path).convert("RGB")) for path in (example.picture, again.picture)
    )
    assert committed.shape == redrawn.shape and (committed == redrawn).all(), f"say: make gallery ARGS={kind}"


def test_an_example_that_a_study_must_not_have_is_refused():
    invalid = replace(KINDS["by_factor"], example={"study": "quickstart", "figure": {"x": "pie"}})
    with pytest.raises(InputError) as refused:
        list(gallery.examples({"by_factor": invalid}))
    assert (refused.value.key, refused.value.got) == ("figures.0.x", "pie")
