import json
from pathlib import Path
from typing import Any

import pytest

from linnet.core.errors import UserError
from linnet.layers.registry import MIXERS
from linnet.model.folder import preset_names, read_description
from linnet.model.spec import ModelSpec

GOOD = """\
name: small
vocab_size: 90
d_model: 64
context_length: 128
blocks:
  - mixer: {kind: attention, heads: 4}
    feed_forward: {kind: glu, hidden: 8}
head: {tied: true}
"""

WRONG = {
    "an unknown key": ("d_model: 64", "d_modle: 64", "{file}: d_modle: unknown key (value 64); did you mean d_model?"),
    "an unknown key beside all others": (
        "name: small",
        "name: small\ncolor: red",
        "color: unknown key (value 'red')",
    ),
    "an unknown key deep inside": ("heads: 4", "heads: 4, headz: 3", "blocks[0].mixer.headz: unknown key (value 3)"),
    "a key that is a number": (
        "name: small",
        "3: small",
        "{file}: 3: unknown key (value 'small'); accepted: name, vocab_size",
    ),
    "a key given twice": (
        "d_model: 64",
        "d_model: 64\nd_model: 32",
        "{file}, line 4: not valid YAML (key 'd_model' is",
    ),
    "heads that do not divide": ("heads: 4", "heads: 5", "blocks[0].mixer.heads: 5: must divide the width 64"),
    "heads of an odd width": ("heads: 4", "heads: 64", "blocks[0].mixer.heads: 64: gives heads of width 1; rotary"),
    "key-value heads that do not divide": ("heads: 4", "heads: 4, kv_heads: 3", "mixer.kv_heads: 3: must divide heads"),
    "a block's width that heads do not divide": (
        "  - mixer",
        "  - width: 30\n    mixer",
        "heads: 4: must divide the width 30",
    ),
    "a missing field": ("vocab_size: 90\n", "", "vocab_size: missing, a value is required"),
    "a missing field deep inside": (", hidden: 8", "", "blocks[0].feed_forward.hidden: missing, a value is required"),
    "a missing kind": ("kind: attention, ", "", "blocks[0].mixer.kind: missing, a value is required"),
    "an unknown kind": (
        "attention",
        "convolution",
        "blocks[0].mixer.kind: 'convolution': must be one of " + ", ".join(map(repr, MIXERS)),
    ),
    "a negative width": ("d_model: 64", "d_model: -64", "d_model: -64: must be greater than 0"),
    "a width in words": ("d_model: 64", "d_model: wide", "d_model: 'wide': must be a whole number"),
    "half a token": ("vocab_size: 90", "vocab_size: 90.5", "vocab_size: 90.5: must be a whole number"),
    "yes for a number": ("heads: 4", "heads: yes", "blocks[0].mixer.heads: True: must be a number"),
    "an infinite number": ("head:", "initialization: {std: .inf}\nhead:", "initialization.std: inf: must be a finite"),
    "a text for a mapping": (
        "{kind: attention, heads: 4}",
        "attention",
        "blocks[0].mixer: 'attention': must be a mapping",
    ),
    "no block": (GOOD[GOOD.index("\n  - mixer") : GOOD.index("\nhead")], " []", "blocks: []: must not be empty"),
    "a block that is no list": ("  - mixer", "    mixer", "must be a list"),
    "a tied head with a bias": ("tied: true", "tied: true, bias: true", "head.bias: True: a tied head has no bias"),
    "an embedding that skips into another width": (
        "blocks:\n",
        "embedding: {skip: true}\nblocks:\n  - {mixer: {kind: ted}, width: 32}\n",
        "{file}: blocks[0].width: 32: must be 64, that of the embedding, with embedding.skip",
    ),
    "first values of another shape": (
        "heads: 4}",
        "heads: 4, value_residual: {}}\n  - mixer: {kind: attention, heads: 2, value_residual: {}}",
        "{file}: blocks[1].mixer.value_residual: values of 2 x 32 (heads x width): must be of 4 x 16",
    ),
    "a cap of nothing": ("tied: true", "tied: true, soft_cap: 0", "head.soft_cap: 0: must be greater than 0"),
    "a broken line": ("heads: 4}", "heads: 4", "{file}, line 7: not valid YAML ("),
    "a tab": ("  - mixer", "\t- mixer", "{file}, line 6: not valid YAML ("),
    "a date that does not exist": ("name: small", "name: 2020-02-30", "{file}: not valid YAML (day is out of range"),
    "python code": ("name: small", "name: !!python/name:os.system x", "{file}, line 1: not valid YAML ("),
    "an empty file": (GOOD, "", "{file}: expected a mapping (name, vocab_size, d_model, …), found nothing"),
    "a list": (GOOD, "- 1\n- 2\n", "{file}: expected a mapping (name, vocab_size, d_model, …), found list"),
}


@pytest.fixture
def good_file(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


def refusal(source: Path | str) -> str:
    with pytest.raises(UserError) as refused:
        ModelSpec.load(source)
    return str(refused.value)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_in_one_line_with_file_field_and_value(tmp_path: Path, case: str):
    right, wrong, expected = WRONG[case]
    path = tmp_path / "wrong.yaml"
    assert GOOD.count(right) == 1
    path.write_text(GOOD.replace(right, wrong))
    line = refusal(path)
    assert line.startswith(str(path))
    assert expected.format(file=path) in line
    assert "\n" not in line


def test_a_missing_file_is_refused_with_the_presets(tmp_path: Path):
    assert refusal("no-such-model") == (
        "no-such-model: no such file, and no preset of that name; presets: " + ", ".join(preset_names())
    )
    assert refusal(tmp_path) == f"{tmp_path}: neither a model folder nor a run folder with one (no config.json)"


def test_files_that_are_not_text_are_refused(tmp_path: Path):
    path = tmp_path / "model.yaml"
    path.write_bytes(b"name: \xff\xfe")
    assert refusal(path) == f"{path}: not UTF-8 text (byte 6)"


def test_a_file_is_read_as_written(good_file: Path):
    spec = ModelSpec.load(good_file)
    assert (spec.name, spec.vocab_size, spec.d_model, spec.context_length) == ("small", 90, 64, 128)
    assert spec.blocks[0].mixer.kind == "attention"
    assert spec.layers == 1


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_restored_from_its_json(name: str, tmp_path: Path):
    spec = ModelSpec.load(name)
    assert spec.name == name
    (tmp_path / "config.json").write_text(json.dumps(spec.model_dump(), indent="\t"))
    assert ModelSpec.load(tmp_path) == spec


def test_a_preset_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert read_description("gpt2-124m")["name"] == "gpt2-124m"
    with pytest.raises(UserError, match="no such file"):
        read_description("../presets/gpt2-124m")


def test_llama_110m_has_the_shape_of_pldr_v51_110m_1():
    """One is the other model with plain attention."""

    def shape(name: str) -> list[Any]:
        spec = ModelSpec.load(name)
        (block,) = spec.blocks
        sizes = [spec.vocab_size, spec.d_model, spec.context_length, spec.head.tied, block.repeat]
        description = block.model_dump()
        return [*sizes, description["mixer"]["heads"], description["feed_forward"]["hidden"]]

    assert shape("llama-110m") == shape("pldr-v51-110m-1")


def test_a_replaced_field_is_validated_again(good_file: Path):
    spec = ModelSpec.load(good_file)
    assert spec.replace(d_model=32).d_model == 32
    assert spec.d_model == 64
    with pytest.raises(UserError, match=r"small: blocks\[0\]\.mixer\.heads: 4: must divide the width 30"):
        spec.replace(d_model=30)


def test_repeats_count_as_layers():
    spec = ModelSpec.load("ted-tinystories")
    assert spec.layers == 8
    assert spec.replace(blocks=[*spec.blocks, *spec.blocks]).layers == 16
