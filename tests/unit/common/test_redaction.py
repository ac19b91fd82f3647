"""Passwords and tokens of addresses are hidden in what is printed and stored, and refused in files."""

import re
import time

import pytest

from common.errors import InputError
from common.files import CHECKOUT, load_yaml
from common.redaction import HIDDEN, find_secret, may_have_secret, redact, redact_file, redact_log
from environments.steps import run_logged
from support.refusals import assert_refusal

SECRET = "s3cr3t-0f-0urs"  # noqa: S105
WITH_SECRET = [
    f"https://name:{SECRET}@host/simple",
    f"http://{SECRET}:x-oauth-basic@host:8080/a?b=c",
    f"http://name:{SECRET}@with@signs@host/",
    f"http://name:sla/sh/{SECRET}@host:1/",
    f"https://host/a.gz?token={SECRET}&x=1",
    f"https://host/a.gz?x=1&X-Amz-Signature={SECRET}",
    f"https://host/a?sig={SECRET}#part",
    f"export HF_TOKEN={SECRET}",
    f"env WANDB_API_KEY='{SECRET}' python",
    f"MY_DB_PASSWORD={SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"{{'authorization': '{SECRET}'}}",
    f"using hf_{SECRET.replace('-', '')}abcdefgh",
]
WITHOUT_SECRETS = [
    "http://127.0.0.1:8000/x@y",
    "https://host/a?authors=3&size=4",
    "file:///a/b@c",
    "http://[::1]:80/a",
    "TOKENIZERS_PARALLELISM=false author=x@y.org, 4 tokens = 5; key: value",
    "ringside: 3.2 of 4.0 MB, 5.1 MB/s",
]


@pytest.mark.parametrize("text", WITH_SECRET)
def test_secrets_are_hidden(text):
    hidden = redact(f"before {text} after")
    assert SECRET not in hidden and SECRET.replace("-", "") not in hidden
    assert hidden.startswith("before ") and hidden.endswith(" after") and HIDDEN in hidden
    assert redact(hidden) == hidden


@pytest.mark.parametrize("text", WITHOUT_SECRETS)
def test_text_without_secrets_is_unchanged(text):
    assert redact(text) == text
    assert not find_secret(text)


@pytest.mark.parametrize(
    "text", ["a://" * 30_000, "http://" + "b:" * 50_000, "A_" * 50_000, "&token" * 20_000, "a" * 200_000]
)
def test_long_texts_are_redacted_quickly(text):
    began = time.process_time()
    redact(text)
    find_secret(text)
    assert time.process_time() - began < 2


def test_error_line_has_no_secret():
    error = InputError(
        "no-answer", f"https://u:{SECRET}@host/ refuses", hint=f"see http://host/?token={SECRET}"
    )
    assert SECRET not in "".join(error.lines)


def test_own_passwords_are_hidden_in_any_form(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", f"http://name:{SECRET}%21@proxy:3128")
    monkeypatch.setenv("SOME_TOKEN", "tok-en")
    assert (
        redact_log(f"proxy said: bad user name:{SECRET}! and tok-en")
        == f"proxy said: bad user name:{HIDDEN} and {HIDDEN}"
    )


def test_log_of_a_command_has_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"https://name:{SECRET}@host/simple")
    log = tmp_path / "build.log"
    log.write_text("earlier\n")
    with pytest.raises(InputError) as error:
        run_logged(
            [
                "sh",
                "-c",
                'echo "looking in $PIP_INDEX_URL"; echo "error: $PIP_INDEX_URL refuses" >&2; exit 1',
            ],
            "trying",
            log,
        )
    assert_refusal(error.value, "command-failed", mentions=[HIDDEN])
    assert SECRET not in log.read_text() + str(error.value.got)
    assert log.read_text().startswith("earlier\n") and log.read_text().count(HIDDEN) == 2


def test_log_in_any_bytes_is_redacted(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xc3 https://u:" + SECRET.encode() + b"@h/\n\xfe")
    redact_file(log)
    assert log.read_bytes() == b"\xff\xc3 https://***@h/\n\xfe"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"datasets: {{mirror: 'https://u:{SECRET}@h/'}}", "datasets.mirror"),
        (f"a: [{{url: 'https://h/x?access_token={SECRET}'}}]", "a.0.url"),
        (f"variables: {{HF_TOKEN: {SECRET}}}", "variables.HF_TOKEN"),
        (f"variables:\n  WANDB_API_KEY: '{SECRET}'", "variables.WANDB_API_KEY"),
        (f"setup: ['module load x', 'export https_proxy=http://u:{SECRET}@proxy:1']", "setup.1"),
    ],
)
def test_files_with_secrets_are_refused(tmp_path, text, key):
    file = tmp_path / "site.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        load_yaml(file)
    assert_refusal(error.value, "secret-in-file", key)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "setup: ['export https_proxy=http://$USER:$PASSWORD@proxy:1', 'export HF_TOKEN=$(cat ~/.token)']",
        "variables: {HF_TOKEN_PATH: /a, TOKENIZERS_PARALLELISM: 'true', TOKENS: 5}",
        "url: https://user@host/",
    ],
)
def test_references_to_secrets_are_allowed(tmp_path, text):
    file = tmp_path / "site.yaml"
    file.write_text(text)
    assert load_yaml(file)


def test_shipped_files_hold_no_secret():
    files = [
        file
        for pattern in ("config/**/*.yaml", "containers/**/*.yaml", "workflow/**/*.yaml")
        for file in CHECKOUT.glob(pattern)
    ]
    assert len(files) > 60
    assert not [file for file in files if may_have_secret(re.sub("(?m)^ *#.*$", "", file.read_text()))]
