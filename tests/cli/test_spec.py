import json
from pathlib import Path
from typing import Any

import pytest
import torch

from linnet.cli import spec
from linnet.cli.main import main
from linnet.core.files import sha256_of
from linnet.interop.exporters import leaves_as
from linnet.model.cost import model_cost
from linnet.model.folder import PRESETS, preset_names
from linnet.model.spec import ModelSpec
from linnet.ops.linear import can_pack_bfloat16


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["spec", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(output(capsys, "show", *arguments, "--json"))
    return shown


def test_list_has_a_line_for_each_preset(capsys: pytest.CaptureFixture[str]):
    header, *lines = output(capsys, "list").splitlines()
    assert header.split() == ["name", "parameters", "layers", "x", "width", "context", "mixers"]
    assert [line.split()[0] for line in lines] == preset_names()
    (ted,) = (line.split() for line in lines if line.startswith("ted-tinystories"))
    assert ted == ["ted-tinystories", "4,748,032", "8", "x", "256", "2,048", "ted"]


@pytest.mark.parametrize("name", preset_names())
def test_the_index_of_presets_is_current(name: str):
    """`make presets` writes it."""
    entry = json.loads((PRESETS / spec.INDEX).read_text())[name]
    assert entry == {"sha256": sha256_of(PRESETS / f"{name}.yaml"), "row": spec.computed_row(name)}


def test_a_preset_that_was_edited_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = (PRESETS / "tiny-ted.yaml").read_text()
    (tmp_path / "tiny-ted.yaml").write_text(text.replace("repeat: 2", "repeat: 3"))
    (tmp_path / spec.INDEX).write_text((PRESETS / spec.INDEX).read_text())
    monkeypatch.setattr("linnet.model.folder.PRESETS", tmp_path)
    assert spec.preset_row("tiny-ted")["layers"] == 3


def test_list_as_json(capsys: pytest.CaptureFixture[str]):
    rows = {row["name"]: row for row in json.loads(output(capsys, "list", "--json"))}
    assert list(rows) == preset_names()
    assert rows["gpt2-124m"] == {
        "name": "gpt2-124m",
        "parameters": 124_439_808,
        "layers": 12,
        "widths": [768],
        "mixers": ["attention"],
        "context_length": 1024,
        "encoder": None,
        "prefix": False,
    }


def test_show_names_the_fields_that_are_on_and_counts_what_they_cost(capsys: pytest.CaptureFixture[str]):
    """Two numbers in each of two layers for each of the first two, two gains of a head's width for the third."""
    changes = ["embedding.skip=true", "blocks.0.mixer.value_residual={}", "blocks.0.mixer.query_key_norm={}"]
    changes += ["head.soft_cap=15", "initialization.zero_outputs=true"]
    plain = [
        word for field in ("value_residual", "query_key_norm") for word in ("--set", f"blocks.0.mixer.{field}=null")
    ]
    options = [word for change in changes for word in ("--set", change)]
    before = figures(capsys, "tiny-attention", *plain)
    after = figures(capsys, "tiny-attention", *options)
    assert after["parameters"]["blocks"] - before["parameters"]["blocks"] == 2 * (2 + 2 + 2 * 32)
    assert after["flops_per_token"] == before["flops_per_token"]
    lines = output(capsys, "show", "tiny-attention", *options).splitlines()
    on = ["embedding.skip", "head.norm", "head.soft_cap", "initialization.zero_outputs"]
    assert lines[1] == f"with {', '.join([*on, 'mixer.query_key_norm', 'mixer.value_residual'])}"
    bare = output(capsys, "show", "tiny-attention", *plain, "--set", "head.norm=null").splitlines()
    assert bare[1] == ""


def test_show_prints_exact_and_readable_figures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """What attention keeps for its gradient depends on the kernel, and so on who made the processor."""
    monkeypatch.setattr("linnet.ops.blocked_attention.DEFAULT_MAX_TOKENS", 1024)
    lines = [" ".join(line.split()) for line in output(capsys, "show", "gpt2-124m").splitlines()]
    assert lines == [
        "gpt2-124m: 12 layers of width 768 (attention), vocabulary 50,257, context 1,024",
        "with head.norm, initialization.scale_residual, mixer.bias, feed_forward.bias",
        "",
        "leaves as:",
        "transformers GPT2LMHeadModel",
        "onnx graphs",
        "web graphs",
        "gguf no: gpt2-124m: embedding.positions: learned: a GGUF file (llama) cannot express it;",
        "expected none",
        "",
        "parameters",
        "embedding 39,383,808 39.4 M",
        "blocks 85,054,464 85.1 M",
        "head 1,536 1.54 k",
        "total 124,439,808 124 M",
        "",
        "forward FLOPs per token, over 1,024 tokens",
        "without output head 207,618,048 208 M",
        "with output head 284,812,800 285 M",
        "",
        "forward FLOPs per sequence, over 1,024 tokens",
        "without output head 212,600,881,152 213 G",
        "with output head 291,648,307,200 292 G",
        "",
        "training FLOPs per token, over 1,024 tokens",
        "without output head 622,854,144 623 M",
        "with output head 854,438,400 854 M",
        "",
        "training FLOPs per sequence, over 1,024 tokens",
        "without output head 637,802,643,456 638 G",
        "with output head 874,944,921,600 875 G",
        "",
        "bytes of weights",
        "float32 497,759,232 475 MiB",
        "bfloat16 326,074,368 311 MiB" if can_pack_bfloat16(torch.device("cpu")) else "bfloat16 248,879,616 237 MiB",
        "int8 127,429,538 122 MiB",
        "int4 73,117,872 69.7 MiB",
        "",
        "bytes of decode state of one stream, float32",
        "1,024 tokens 75,497,472 72 MiB",
        "8,192 tokens 603,979,776 576 MiB",
        "65,536 tokens 4,831,838,208 4.50 GiB",
        "",
        "bytes that a training step of 8 x 1,024 tokens holds, float32",
        "weights 497,759,232 475 MiB",
        "gradients 497,759,232 475 MiB",
        "moments 995,518,464 949 MiB",
        "activations 5,038,197,760 4.69 GiB",
        "total 7,029,234,688 6.55 GiB",
    ]


@pytest.mark.parametrize("name", [name for name in preset_names() if ModelSpec.load(name).encoder is None])
def test_json_has_the_figures_of_the_model(name: str, capsys: pytest.CaptureFixture[str]):
    spec = ModelSpec.load(name)
    cost, context = model_cost(spec), spec.context_length
    memory, (forms, refusals) = cost.training_memory(8, context), leaves_as(spec)
    assert figures(capsys, name) == {
        "name": name,
        "tokens": context,
        "batch": 8,
        "parameters": {
            "total": cost.parameters,
            "embedding": cost.embedding.parameters,
            "blocks": cost.blocks.parameters,
            "head": cost.head.parameters,
            "active": cost.active_parameters,
        },
        "flops_per_token": {
            "with_head": round(cost.flops_per_token(context, with_head=True)),
            "without_head": round(cost.flops_per_token(context, with_head=False)),
        },
        "flops_per_sequence": {
            "with_head": cost.flops(context, with_head=True),
            "without_head": cost.flops(context, with_head=False),
        },
        "training_flops_per_token": {
            "with_head": round(cost.training_flops(context, with_head=True) / context),
            "without_head": round(cost.training_flops(context, with_head=False) / context),
        },
        "training_flops_per_sequence": {
            "with_head": cost.training_flops(context, with_head=True),
            "without_head": cost.training_flops(context, with_head=False),
        },
        "weights_bytes": {kind: cost.weights_bytes(kind) for kind in ("float32", "bfloat16", "int8", "int4")},
        "state_bytes": {str(tokens): cost.state_bytes(tokens) for tokens in (1024, 8192, 65536)},
        "training_memory_bytes": {
            "weights": memory.weights,
            "gradients": memory.gradients,
            "moments": memory.moments,
            "activations": memory.activations,
            "total": memory.total,
        },
        "leaves_as": forms,
        "not_as": refusals,
    }


def test_flops_over_other_lengths_and_memory_of_other_batches(capsys: pytest.CaptureFixture[str]):
    shown, cost = (
        figures(capsys, "merino-52m", "--tokens", "1024", "--batch", "2"),
        model_cost(ModelSpec.load("merino-52m")),
    )
    assert shown["flops_per_sequence"]["without_head"] == cost.flops(1024, with_head=False)
    assert shown["training_memory_bytes"]["total"] == cost.training_memory(2, 1024).total


def test_flops_are_whole_numbers_where_a_part_runs_once_per_sequence(capsys: pytest.CaptureFixture[str]):
    flops = figures(capsys, "pldr-v51-104m", "--set", "context_length=1001")["flops_per_token"]
    assert all(type(count) is int for count in flops.values())


def test_half_the_precision_is_half_the_state_but_for_decay_rates(capsys: pytest.CaptureFixture[str]):
    for name, layers_with_rates in (("llama-110m", 0), ("ted-tinystories", 8)):
        full = figures(capsys, name)["state_bytes"]["1024"]
        half = figures(capsys, name, "--precision", "bfloat16")["state_bytes"]["1024"]
        rates = 4 * 1024 * layers_with_rates
        assert half - rates == (full - rates) / 2
        beside_few_bits = figures(capsys, name, "--precision", "int4")["state_bytes"]["1024"]
        assert beside_few_bits == (full if layers_with_rates else half)  # keys and values alone


def test_a_changed_field_is_a_changed_model(capsys: pytest.CaptureFixture[str]):
    shown = figures(capsys, "gpt2-124m", "--set", "model.blocks.0.repeat=24", "--set", "name=double")
    assert shown["name"] == "double"
    assert shown["parameters"]["blocks"] == 2 * 85_054_464


def test_a_file_with_blocks_of_several_widths(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "mixed.yaml"
    path.write_text(
        "{vocab_size: 9, d_model: 8, context_length: 16, name: mixed,"
        " blocks: [{mixer: {kind: ted}}, {mixer: {kind: attention, heads: 2}, width: 12}]}"
    )
    assert output(capsys, "show", str(path)).startswith("mixed: 2 layers of width 8/12 (ted, attention), vocabulary 9,")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["no-such"], "error: no-such: no such file, and no preset of that name; presets: "),
        (
            ["gpt2-124m", "--set", "d_model=770"],
            "error: gpt2-124m: blocks[0].mixer.heads: 12: must divide the width 770",
        ),
        (["gpt2-124m", "--set", "color=red"], "error: gpt2-124m: color: unknown key (value 'red')"),
        (["gpt2-124m", "--set", "color"], "error: --set color: expected section.key=value"),
        (["gpt2-124m", "--tokens", "1025"], "error: --tokens 1025: the model's learned positions end at 1024"),
        (["gpt2-124m", "--precision", "int2"], "error: Invalid value for '--precision': "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]):
    assert main(["spec", "show", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(expected)
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["--tokens", "--batch"])
def test_amounts_beyond_all_text_are_refused(option: str, capsys: pytest.CaptureFixture[str]):
    assert main(["spec", "show", "tiny-ted", option, 30 * "9"]) == 2
    assert capsys.readouterr().err == f"error: {option} {30 * '9'}: expected at most {1 << 48}\n"


def test_an_encoder_decoder_shows_both(capsys: pytest.CaptureFixture[str]):
    cost = model_cost(ModelSpec.load("tiny-encoder-decoder"))
    shown = output(capsys, "show", "tiny-encoder-decoder", "--tokens", "64", "--inputs", "200")
    assert shown.startswith(
        "tiny-encoder-decoder: an encoder of 1 layer of width 128 (attention), a decoder of 1 layer"
    )
    figures = json.loads(output(capsys, "show", "tiny-encoder-decoder", "--tokens", "64", "--inputs", "200", "--json"))
    assert figures["parameters"]["encoder"] == cost.encoder.parameters
    assert figures["flops_per_sequence"]["with_head"] == cost.flops(64, True, inputs=200)
    assert figures["state_bytes"]["1024"] == cost.state_bytes(1024, inputs=200)
    rows = {row["name"]: row for row in json.loads(output(capsys, "list", "--json"))}
    assert rows["tiny-encoder-decoder"]["encoder"] == {"layers": 1, "widths": [128], "mixers": ["attention"]}
    assert rows["tiny-prefix"]["prefix"]


def test_inputs_are_of_an_encoder(capsys: pytest.CaptureFixture[str]):
    assert main(["spec", "show", "tiny-ted", "--inputs", "9"]) == 2
    assert "--inputs 9: tiny-ted has no encoder that reads an input" in capsys.readouterr().err


def test_show_says_what_a_model_leaves_as(capsys: pytest.CaptureFixture[str]):
    assert main(["spec", "show", "tiny-llama"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    begin = lines.index("leaves as:") + 1
    assert lines[begin : begin + 4] == ["transformers LlamaForCausalLM", "gguf llama", "onnx graphs", "web graphs"]
    assert main(["spec", "show", "tiny-encoder-decoder"]) == 0
    assert capsys.readouterr().out.count(" no: tiny-encoder-decoder: model.encoder: ") == 4
    assert main(["spec", "show", "tiny-attention", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_as"].keys() == {"gguf"}


def test_yaml_is_a_description_with_the_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["spec", "show", "tiny-llama", "--set", "blocks.0.mixer.heads=2", "--yaml"]) == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
    mine, preset = (ModelSpec.load(source) for source in (tmp_path / "mine.yaml", "tiny-llama"))
    (block,) = preset.blocks
    changed = block.model_copy(update={"mixer": block.mixer.model_copy(update={"heads": 2})})
    assert mine == preset.model_copy(update={"blocks": [changed]})
