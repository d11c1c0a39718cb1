import json

import pytest

from linnet.cli.main import main
from linnet.data.template_doctor import CHECKS
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model

SOUND = (
    "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
    "{% else %}U:{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model without a chat template, and a file of two conversations."""
    folder = tmp_path_factory.mktemp("doctor")
    tokenizer = Tokenizer.train("bytes", [])
    block = {"repeat": 1, "mixer": {"kind": "attention", "heads": 1}, "feed_forward": {"kind": "glu", "hidden": 8}}
    description = {"vocab_size": tokenizer.vocab_size, "d_model": 8, "context_length": 64, "blocks": [block]}
    write_model(folder / "model", Decoder(ModelSpec.parse(description, "test")), tokenizer, {})
    rows = [{"instruction": "Who sang?", "output": "The bird."}, {"instruction": "When?", "output": "Now."}]
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def doctor(capsys, folder, *options):
    code = main(["tokenizer", "doctor", str(folder / "chat.jsonl"), "--model", str(folder / "model"), *options])
    captured = capsys.readouterr()
    return code, captured.out


def test_the_plain_template_fails_two_checks(capsys, folder):
    code, out = doctor(capsys, folder)
    assert code == 1 and all(check in out for check in CHECKS)
    assert f"{folder / 'chat.jsonl'}, line 1: answer 0 ends with" in out
    code, out = doctor(capsys, folder, "--json", "--limit", "1")
    found = {each["check"]: each["conversations"] for each in json.loads(out)["findings"]}
    assert code == 1
    expected = ["stop token trained after every answer", "generation prompt equals the training prefix"]
    assert found == dict.fromkeys(expected, 1)


def test_a_sound_template_passes(capsys, folder):
    template = folder / "model" / "chat_template.jinja"
    template.write_text(SOUND)
    try:
        code, out = doctor(capsys, folder, "--json")
    finally:
        template.unlink()
    assert code == 0 and json.loads(out)["findings"] == []


def test_a_missing_file_is_named(capsys, folder):
    assert main(["tokenizer", "doctor", "none.jsonl", "--model", str(folder / "model")]) == 2
    assert "none.jsonl: expected a .jsonl file of conversations" in capsys.readouterr().err
