"""Runs of user-supplied PyTorch modules are planned for frameworks of PyTorch, with keys of their files."""

from pathlib import Path

import pytest

from common.errors import InputError
from declared import user_models
from declared.study import load_study
from declared.user_models import load_user_model
from plan import identity
from plan.design import plan_design
from plan.geometry import INFEASIBLE_FOR_FRAMEWORK
from plan.identity import code_digest
from support.installed_site import SITE
from support.own_commands import write_study
from support.user_models import NORMALIZED, user_models_in

SOURCE = Path(user_models.CHECKOUT, NORMALIZED["file"])


def test_other_libraries_refuse_a_user_model_by_name(tmp_path: Path) -> None:
    with user_models_in(tmp_path / "models", ours={}):
        study = load_study("s", write_study(tmp_path, framework="jax", model="ours", dataset="digits"))
        with pytest.raises(InputError) as refused:
            plan_design(study, SITE)
    assert refused.value.got == {"framework": "jax", "model": "ours"}
    assert refused.value.code == INFEASIBLE_FOR_FRAMEWORK and "pytorch-fsdp" in refused.value.hint


def test_an_edit_of_its_file_changes_only_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digests() -> list[str]:
        code_digest.cache_clear()
        return [code_digest("pytorch-ddp", model, "digits") for model in ("ours", "small-cnn")]

    copy = tmp_path / "checkout" / NORMALIZED["file"]
    copy.parent.mkdir(parents=True)
    copy.write_text(SOURCE.read_text())
    with user_models_in(tmp_path / "models", ours={}):
        load_user_model("ours")
        monkeypatch.setattr(user_models, "CHECKOUT", tmp_path / "checkout")
        before = digests()
        copy.write_text(SOURCE.read_text().replace("8, 3", "16, 3"))
        after = digests()
    identity.code_digest.cache_clear()
    assert after[0] != before[0] and after[1] == before[1]
