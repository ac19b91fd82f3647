"""Samples of a rank do not depend on how they are divided; neither do fresh samples and augmentation."""

import itertools
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from models.graph import Graph, Operator, Shape
from models.named import graph
from ranks.worker.batches import (
    Augmentation,
    Batch,
    Clicks,
    Counting,
    Fresh,
    Noise,
    Regions,
    Topics,
    mask_tokens,
)
from ranks.worker.context import Context
from ranks.worker.group import Group


def images(number: int, side: int = 16) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 256, size=(number, side, side, 3)).astype(np.uint8)


@pytest.mark.parametrize(
    "split",
    [
        Noise(7, 64, (5, 5, 3), 10),
        Regions(7, 64, (5, 9, 3), 3),
        Clicks(7, 64, 26 * 10),
        Counting(7, 64, 12, 50),
        Topics(7, 64, 12, 50, 4),
    ],
)
def test_drawn_sample_depends_on_its_index_not_its_rank(split: Fresh) -> None:
    samples, labels = split.read(2, slice(0, 64), np.arange(64))
    parts = [split.read(2, slice(first, first + 16), np.arange(16)) for first in range(0, 64, 16)]
    assert np.array_equal(np.concatenate([part for part, _ in parts]), samples)
    assert np.array_equal(np.concatenate([part for _, part in parts]), labels)
    assert not np.array_equal(samples, split.read(3, slice(0, 64), np.arange(64))[0]), (
        "an epoch has samples of its own"
    )


def test_fresh_pixels_and_labels_are_uniform() -> None:
    drawn, labels = Noise(7, 4096, (8, 8, 1), 10).read(1, slice(0, 4096), np.arange(4096))
    assert drawn.shape == (4096, 8, 8, 1) and drawn.dtype == np.uint8
    assert drawn.mean() == pytest.approx(127.5, abs=1) and drawn.std() == pytest.approx(73.9, abs=1)
    assert np.bincount(labels, minlength=10) == pytest.approx(np.full(10, 409.6), rel=0.2)


def test_the_class_of_each_pixel_can_be_learnt() -> None:
    images, labels = Regions(7, 200, (20, 9, 2), 3).read(1, slice(0, 200), np.arange(200))
    assert (images.shape, images.dtype) == ((200, 20, 9, 2), np.uint8)
    assert (labels.shape, labels.dtype) == ((200, 180), np.int64)
    assert np.bincount(labels.ravel()) == pytest.approx(np.full(3, 12_000), rel=0.15)
    pixels = labels.reshape(200, 20, 9)
    assert (pixels[:, :8, :8] == pixels[:, :1, :1]).all() and (pixels[:, 7] != pixels[:, 8]).any()
    means = [images[pixels == label].mean() for label in range(3)]
    assert means == pytest.approx([0.75 * 127.5 + level / 4 - 0.4 for level in (0, 127, 255)], abs=1.5)


def test_clicks_follow_from_categories() -> None:
    rows, labels = Clicks(7, 4000, 26 * 100).read(1, slice(0, 4000), np.arange(4000))
    counts, values = rows[:, :13], rows[:, 13:] - 100 * np.arange(26)
    assert (rows.shape, labels.shape, rows.dtype, labels.dtype) == ((4000, 39), (4000,), np.int64, np.int64)
    assert counts.min() == 0 and counts.max() == 4095 and np.median(counts) < 100, "of all magnitudes"
    assert values.min() == 0 and 90 < values.max() < 100 and (values < 25).mean() > 0.5, "few are frequent"
    assert 0.3 < labels.mean() < 0.7
    by_value = np.zeros((26 * 100, 2))
    np.add.at(by_value, (rows[:, 13:], labels[:, None]), 1)
    share = (by_value[:, 1] + labels.mean()) / (by_value.sum(1) + 1)
    assert ((share[rows[:, 13:]].mean(1) > labels.mean()) == labels).mean() > 0.9, "each value has its part"


def test_what_follows_a_token_can_be_learnt() -> None:
    tokens, labels = Counting(7, 2000, 12, 50).read(1, slice(0, 2000), np.arange(2000))
    assert tokens.shape == labels.shape == (2000, 12) and tokens.dtype == labels.dtype == np.int64
    assert np.array_equal(tokens[:, 1:], labels[:, :-1]) and set(tokens.ravel()) == set(range(50))
    assert ((tokens + 1) % 50 == labels).mean() == pytest.approx(0.75 + 0.25 / 50, abs=0.01)
    assert np.bincount(tokens[:, 0], minlength=50) == pytest.approx(np.full(50, 40), abs=30), (
        "each begins anywhere"
    )


def test_the_class_of_a_text_can_be_learnt() -> None:
    tokens, labels = Topics(7, 2000, 12, 50, 4).read(1, slice(0, 2000), np.arange(2000))
    assert tokens.shape == (2000, 12) and labels.shape == (2000,) and tokens.dtype == labels.dtype == np.int64
    assert set(tokens.ravel()) == set(range(50)) and np.bincount(labels) == pytest.approx(
        np.full(4, 500), rel=0.2
    )
    assert (tokens % 4 == labels[:, None]).mean() == pytest.approx(0.25 + 0.75 / 4, abs=0.01)


def context_of(folder: Path, model: Graph | None, ranks: int = 1, rank: int = 0, **manifest: Any) -> Context:
    """Return a rank's context for a data set of 32 samples, drawn unless the manifest says otherwise."""
    manifest = {"fresh": True, "train_samples": 32, "validation_samples": 8, **manifest}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    spec = {"seed": 7, "ranks": ranks, "local_batch": 8, "replicas_per_rank": 1, "samples_per_epoch": 32}
    job: dict[str, Any] = {"data": str(folder), "spec": {**spec, "levels": {"augmentation": "none"}}}
    if model:
        job["model"] = model.to_json()
    return Context(folder, job, rank, 0, cast(Group, None))


def test_last_positions_with_logits_have_labels(tmp_path: Path) -> None:
    def batches(logits: Shape) -> list[Batch]:
        tokens = Operator("input", "input", (), (6,), {"vocabulary": 9})
        model = Graph("m", "he", (tokens, Operator("o", "o", ("input",), logits)))
        context = context_of(tmp_path, model, shape=[6], vocabulary=9)
        assert context.positions == logits[0]
        return [*context.epoch(1), *context.validation()]

    for (tokens, labels), (same_tokens, last) in zip(batches((6, 9)), batches((2, 9)), strict=True):
        assert tokens.shape == labels.shape == (8, 6) and np.array_equal(tokens, same_tokens)
        assert np.array_equal(labels[:, 4:], last)


def test_masked_positions_have_labels_and_eight_of_ten_the_mask() -> None:
    tokens, samples = np.random.default_rng(0).integers(50, size=(500, 40)), np.arange(500)
    inputs, labels = mask_tokens(tokens, samples, 6, 50, [7, 1])
    masked, positions = inputs[:, :40], inputs[:, 40:]
    assert (labels.shape, labels.dtype, inputs.dtype) == ((500, 6), np.int64, np.int64)
    assert (np.diff(positions) > 0).all() and positions.min() == 0 and positions.max() == 39
    assert np.array_equal(labels, np.take_along_axis(tokens, positions, 1))
    seen, is_masked = np.take_along_axis(masked, positions, 1), np.zeros(tokens.shape, bool)
    np.put_along_axis(is_masked, positions, True, 1)
    assert np.array_equal(masked[~is_masked], tokens[~is_masked]), "other tokens stay"
    assert (seen == 50).mean() == pytest.approx(0.8, abs=0.02)
    assert (seen == labels).mean() == pytest.approx(0.1 + 0.1 / 50, abs=0.02)
    assert np.bincount(positions.ravel()) == pytest.approx(np.full(40, 75), abs=35)
    last, _ = mask_tokens(tokens[400:], samples[400:], 6, 50, [7, 1])
    assert np.array_equal(last, inputs[400:]), "a sequence's masks do not depend on those of its batch"
    assert not np.array_equal(inputs, mask_tokens(tokens, samples, 6, 50, [7, 2])[0]), "nor repeat"


def test_batches_of_a_model_that_masks_have_its_shapes(tmp_path: Path) -> None:
    context = context_of(tmp_path, graph("bert-nano", (20,), 9, 9, "next"), shape=[20], vocabulary=9)
    assert context.positions == 3 and context.samples_in_memory() is None
    batches = [*context.epoch(1), *context.validation()]
    assert [(tokens.shape, labels.shape) for tokens, labels in batches] == [((8, 23), (8, 3))] * 5
    assert max(tokens[:, :20].max() for tokens, _ in batches) == 9, "the mask is one more token"


def test_masked_samples_are_not_those_in_memory(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for name in ("tokens", "labels"):
        np.save(tmp_path / "train" / f"{name}.npy", np.zeros((32, 20), np.uint16))
    models = (graph(name, (20,), 9, 9, "next") for name in ("gpt-nano", "bert-nano"))
    contexts = [context_of(tmp_path, model, shape=[20], vocabulary=9, fresh=False) for model in models]
    assert [context.samples_in_memory() is None for context in contexts] == [False, True]


def test_validation_does_not_depend_on_epoch_or_partition(tmp_path: Path) -> None:
    images_of = {"shape": [4, 4, 1], "classes": list("abc"), "validation_samples": 50}

    def shares(ranks: int) -> list[np.ndarray]:
        contexts = [context_of(tmp_path, None, ranks, rank, **images_of) for rank in range(ranks)]
        return [images for context in contexts for images, _ in context.validation()]

    together = np.concatenate(shares(1))
    assert together.shape == (50, 4, 4, 1) and max(map(len, shares(1))) == 8, (
        "no more at once than in training"
    )
    assert all(np.array_equal(together, np.concatenate(shares(ranks))) for ranks in (1, 3))
    training, _ = Noise(7, 64, (4, 4, 1), 3).read(0, slice(0, 50), np.arange(50))
    assert not np.array_equal(together, training)


def test_heterogeneous_ranks_have_own_cores_and_samples(tmp_path: Path) -> None:
    spec = {
        "device": "hybrid",
        "ranks": 6,
        "ranks_per_node": 3,
        "replicas_per_rank": 1,
        "rank_cores": [2, 2, 12],
    }
    spec |= {"local_batch": 10, "cores_per_rank": 12}
    ranks = [Context(tmp_path, {"spec": spec}, rank, rank % 3, cast(Group, None)) for rank in range(6)]
    assert [rank.cores for rank in ranks] == [2, 2, 12] * 2
    assert [rank.accelerators for rank in ranks] == [[0, 1]] * 6
    assert [rank.sample_slice for rank in ranks[:2]] == [slice(0, 10), slice(10, 20)]
    for rank in ranks:
        rank.divide([20, 20, 1, 9, 9, 1])
    assert [rank.sample_slice for rank in ranks] == [
        slice(*ends) for ends in itertools.pairwise([0, 20, 40, 41, 50, 59, 60])
    ]


def test_ranks_of_a_replica_see_equal_samples_and_one_counts(tmp_path: Path) -> None:
    mesh = {"pipeline": 2, "data": 2, "sharded": 1, "tensor": 1}
    spec = {"ranks": 4, "local_batch": 8, "replicas_per_rank": 1, "replicas": 2, "mesh": mesh}
    spec["levels"] = {"schedule": "1f1b"}
    ranks = [Context(tmp_path, {"spec": spec}, rank, 0, cast(Group, None)) for rank in range(4)]
    assert [rank.replica for rank in ranks] == [0, 1, 0, 1] and ranks[0].sample_counts == [8, 8]
    assert [rank.sample_slice for rank in ranks] == [slice(0, 8), slice(8, 16)] * 2
    assert all(rank.reporters == [2, 3] for rank in ranks), "the last stage has the logits"
    spec["levels"] = {"schedule": "zero-bubble-v"}
    assert Context(tmp_path, {"spec": spec}, 0, 0, cast(Group, None)).reporters == [0, 1]


def test_without_augmentation_images_stay_as_they_are() -> None:
    originals = images(8)
    assert np.array_equal(Augmentation("none", 1, 1, 8, 16)(originals.copy(), np.arange(8)), originals)


def test_half_of_the_images_are_mirrored() -> None:
    originals = images(400, 4)
    changed = Augmentation("flip", 1, 1, 400, 4)(originals.copy(), np.arange(400))
    mirrored = [np.array_equal(new, old[:, ::-1]) for new, old in zip(changed, originals, strict=True)]
    unchanged = [np.array_equal(new, old) for new, old in zip(changed, originals, strict=True)]
    assert all(a != b for a, b in zip(mirrored, unchanged, strict=True)) and 150 < sum(mirrored) < 250


def test_crop_moves_an_image_by_at_most_an_eighth_of_its_height() -> None:
    originals, augment = images(300), Augmentation("flip-crop", 1, 1, 300, 16)
    changed = augment(originals.copy(), np.arange(300))
    moves = set()
    for number, new in enumerate(changed):
        old = originals[number][:, ::-1] if augment.flips[number] else originals[number]
        padded = np.pad(old, ((2, 2), (2, 2), (0, 0)))
        top, left = augment.corners[number]
        left = 4 - left if augment.flips[number] else left  # mirrored after it was cut
        assert np.array_equal(new, padded[top : top + 16, left : left + 16])
        moves.add((int(top), int(left)))
    assert moves == {(top, left) for top in range(5) for left in range(5)}


def test_augmentation_belongs_to_the_sample_and_the_epoch() -> None:
    originals, numbers = images(32), np.arange(32)
    augmented = Augmentation("flip-crop", 1, 1, 32, 16)(originals.copy(), numbers)
    half = Augmentation("flip-crop", 1, 1, 32, 16)(originals[16:].copy(), numbers[16:])
    assert np.array_equal(augmented[16:], half), "it does not matter who takes it"
    assert not np.array_equal(augmented, Augmentation("flip-crop", 1, 2, 32, 16)(originals.copy(), numbers))
