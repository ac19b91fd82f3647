"""The gallery shows every kind of figure, by lines that a study may say, and its pictures are what these lines draw."""

import re

import numpy as np
import pytest
from PIL import Image

from common.errors import InputError
from declared.figures import KINDS
from figures import gallery

LARGEST_BYTES = 120_000


@pytest.fixture(scope="module")
def examples():
    return list(gallery.examples())


def test_every_kind_has_a_section_with_lines_of_a_study_in_the_order_of_the_table(examples):
    text = gallery.PAGE.read_text()
    assert [example.asked.kind for example in examples] == list(KINDS)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(KINDS)
    linked = re.findall(r"\(#(\w+)\)", text)
    assert sorted(linked) == sorted(KINDS)


def test_a_kind_has_a_small_picture_unless_no_campaign_that_is_kept_fills_it(examples):
    assert [example.asked.kind for example in examples if example.picture is None] == ["energy"]
    pictures = [example.picture for example in examples if example.picture]
    for example in examples:
        if example.picture:
            assert example.picture.name == f"{example.asked.kind}.png"
            assert 0 < example.picture.stat().st_size <= LARGEST_BYTES, example.picture
    assert sorted(pictures) == sorted(pictures[0].parent.glob("*")), "no picture is left over"


@pytest.mark.parametrize("kind", ["timeline", "shares"])
def test_a_picture_is_what_its_lines_draw_today(kind, examples, tmp_path):
    example = next(example for example in examples if example.asked.kind == kind)
    again = gallery.Example(example.study, example.asked, tmp_path / "again.png")
    gallery.make(again, tmp_path)
    kept, drawn = (np.asarray(Image.open(path).convert("RGB")) for path in (example.picture, again.picture))
    assert kept.shape == drawn.shape and (kept == drawn).all(), f"say: make gallery ARGS={kind}"


def test_lines_that_a_study_must_not_say_are_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```yaml\n# config/studies/quickstart.yaml\nfigures:\n  - {kind: pie}\n```\n")
    with pytest.raises(InputError, match=r"figures.0.kind: 'pie' is unknown"):
        list(gallery.examples(page))


def test_a_kind_that_there_is_not_is_refused_before_anything_is_drawn():
    with pytest.raises(InputError, match="'pie' is no kind of figure"):
        gallery.main(["pie"])
