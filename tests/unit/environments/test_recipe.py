"""Recipes say what images become: those in git are what the descriptions give, and a digest is what a recipe
says.
"""

import json
import re
from dataclasses import replace

import pytest

from common.errors import InputError
from common.shell import capture
from declared.environments import Realization, lineage, read
from environments.identity import environment_digest, parent_stamps
from environments.packages import entries, image_pythons
from environments.recipe import recipe, recipe_files
from support.refusals import assert_refusal

IMAGES = Realization("apptainer")


def digests(tiny, realization=IMAGES):
    return [environment_digest(name, "cpu", realization, tiny.containers) for name in ("base", "over")]


def test_those_in_git_are_what_the_descriptions_give():
    for file, text in recipe_files().items():
        assert file.read_text() == text, f"{file.name} of {file.parent.name} is old: make recipes"


def test_no_recipe_in_git_names_a_folder_of_a_machine():
    for text in recipe_files().values():
        assert not re.search(r"/(home|root|tmp|work|var/tmp)/", text)


@pytest.mark.parametrize(
    ("base", "header"),
    [
        ("docker://debian:bookworm-slim", "Bootstrap: docker\nFrom: debian:bookworm-slim\n"),
        ("docker://own.registry:5000/a/debian", "Bootstrap: docker\nFrom: own.registry:5000/a/debian\n"),
        ("debootstrap:http://mirror/debian", "Bootstrap: debootstrap\nOSVersion: bookworm\nMirrorURL: http://mirror/debian\n"),
        ("/images/a base.sif", "Bootstrap: localimage\nFrom: /images/a base.sif\n"),
    ],
)  # fmt: skip
def test_the_base_is_the_sites(base, header):
    assert recipe(read("pytorch"), base).startswith(header)
    assert recipe(read("horovod-pytorch"), base, parent="/cache/image.sif").startswith(
        "Bootstrap: localimage\nFrom: /cache/image.sif\n"
    )


def test_packages_are_bound_to_hashes_and_sources_to_checksums():
    text = recipe(read("horovod-pytorch"))
    assert "--require-hashes" in text
    assert f'"sha256": "{read("horovod-pytorch").sources[0].sha256}"' in text
    (wheel,) = read("pytorch").wheels
    assert f"torch==2.13.0+cpu --hash=sha256:{wheel.sha256['cp311-linux_x86_64']}" in recipe(read("pytorch"))


def test_values_stay_values_whatever_is_in_them(tiny):
    file = tiny.containers / "base" / "environment.yaml"
    hostile = "it's; $(id) `id` \\\" x"
    file.write_text(file.read_text().replace("{GREETING: hello}", f"{{GREETING: {json.dumps(hostile)}}}"))
    (line,) = [
        line
        for line in recipe(read("base", containers=tiny.containers)).splitlines()
        if line.startswith("export GREETING")
    ]
    done = capture(["sh", "-c", f'{line}\nprintf %s "$GREETING"'], check=True)
    assert done.stdout == hostile


def test_lock_is_read_for_the_images_python():
    lock = (
        "# Made\nnumpy==2.4.6 ; python_full_version < '3.12' \\\n    --hash=sha256:aa\n"
        "numpy==2.5.5 ; python_full_version >= '3.12' \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
        "sympy==1.14.0 \\\n    --hash=sha256:dd\n"
    )
    assert entries(lock, *image_pythons()) == [
        "# Made\n",
        "numpy==2.4.6 \\\n    --hash=sha256:aa\n",
        "sympy==1.14.0 \\\n    --hash=sha256:dd\n",
    ]


def test_the_label_is_the_digest_at_the_site():
    assert "ringside.digest" not in recipe(read("pytorch"))
    assert "\nringside.digest abc\n" in recipe(read("pytorch"), digest="abc")


def test_a_recipe_a_lock_and_a_selftest_change_the_digest(tiny):
    seen = [tuple(digests(tiny))]
    for file, old, new in [
        ("base/requirements.cpu.txt", "tiny", "Tiny"),
        ("base/environment.yaml", "hello", "good day"),
        ("base/selftest.py", "import", "CHANGED = True\nimport"),
    ]:
        path = tiny.containers / file
        path.write_text(path.read_text().replace(old, new, 1))
        seen.append(tuple(digests(tiny)))
    assert len({base for base, _ in seen}) == len({over for _, over in seen}) == len(seen)


def test_deployment_and_base_but_no_mirror_change_the_digest(tiny):
    bases = ["debootstrap", "/a/base.sif", "/b/base.sif"]
    at = [Realization("venv"), IMAGES, *(replace(IMAGES, base=base) for base in bases)]
    assert len({tuple(digests(tiny, realization)) for realization in at}) == len(at)
    assert digests(tiny, at[2]) == digests(tiny, replace(IMAGES, base="debootstrap:http://mirror"))
    assert digests(tiny) == digests(tiny, replace(IMAGES, abi="cp399-linux_x86_64")), (
        "an image has its own Python"
    )


def test_packages_of_images_are_not_in_virtual_environments(tiny):
    before = digests(tiny, Realization("venv"))
    with open(tiny.containers / "base" / "environment.yaml", "a") as file:
        file.write("image: {index: 'https://index'}\n")
    assert digests(tiny, Realization("venv")) == before


class TestWhatASiteBrings:
    def test_an_image_takes_the_place_of_a_build(self, tiny):
        brings = replace(IMAGES, brought=(("over", "/images/over.sif"),))
        assert digests(tiny, brings)[0] == digests(tiny)[0]
        assert digests(tiny, brings)[1] != digests(tiny)[1]
        assert lineage(["over"], tiny.containers, brings) == ["over"], "its parent is not built for it"
        assert parent_stamps("/cache", "over", realization=brings, containers=tiny.containers) == []

    def test_nothing_is_built_over_it(self, tiny):
        with pytest.raises(InputError) as refused:
            digests(tiny, replace(IMAGES, brought=(("base", "docker://base"),)))
        assert_refusal(refused.value, "not-possible-here", "parent", ["images.brought.over"])

    @pytest.mark.parametrize("name", ["tarantella", "flexflow"])
    def test_what_nobody_builds_must_be_brought_at_any_site(self, name):
        with pytest.raises(InputError) as refused:
            environment_digest(name)
        keys = [f"installed.{name}", f"images.brought.{name}"]
        assert_refusal(refused.value, "not-installed", "", keys)
        for deployment in ("venv", "apptainer"):
            brings = Realization(deployment, brought=((name, "/images/it.sif"),))
            assert environment_digest(name, realization=brings)


class TestSpack:
    @pytest.mark.parametrize(("variant", "spec"), [("cpu", "~cuda"), ("cuda", "+cuda cuda_arch=80")])
    def test_its_recipe_has_the_variants_of_its_spec(self, variant, spec):
        text = recipe(read("lbann", variant))
        assert text.startswith("Bootstrap: docker\nFrom: spack/")
        assert (
            f"spack --env lbann add 'lbann@0.104 ~pfe +python +numpy ~vision dtype=float {spec} ^conduit~"
            in text
        )
        assert "' 'py-numpy'\n" in text, "ranks import it"
