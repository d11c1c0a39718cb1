"""What llama.cpp has no graph for is refused in one line that names the field."""

import math
from typing import Any

import pytest

from linnet.core.errors import UserError
from linnet.interop.gguf.architecture import architecture_metadata, check_architecture
from linnet.model.spec import ModelSpec

BLOCK = {"mixer": {"kind": "attention", "heads": 4}, "feed_forward": {"kind": "glu", "hidden": 64}}
MODEL = {"name": "small", "vocab_size": 300, "d_model": 32, "context_length": 128, "head": {"norm": {}}}


def model(mixer: Any = (), feed_forward: Any = (), block: Any = (), **fields: Any) -> ModelSpec:
    changed = {"mixer": BLOCK["mixer"] | dict(mixer), "feed_forward": BLOCK["feed_forward"] | dict(feed_forward)}
    return ModelSpec.parse({**MODEL, "blocks": [{**changed, **dict(block)}], **fields}, "small")


YARN = {"kind": "yarn", "factor": 4.0, "trained": 64}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (model({"kind": "retention", "heads": 4}), "blocks[0].mixer.kind: retention: .* expected attention"),
        (model({"window": 64}), "blocks[0].mixer.window: 64: .* expected none"),
        (model({"sinks": True}), "blocks[0].mixer.sinks: true: .* expected false"),
        (model({"gate": "head"}), "blocks[0].mixer.gate: head: .* expected none"),
        (model({"scale": 0.5}), "blocks[0].mixer.scale: 0.5: .* expected none"),
        (model({"value_residual": {}}), "blocks[0].mixer.value_residual: one: .* expected none"),
        (model({"positions": {"kind": "alibi"}}), "blocks[0].mixer.rotary: none: .* expected one"),
        (model({"rotary": None}), "blocks[0].mixer.rotary: none: .* expected one"),
        (model({"rotary": None, "head_dim": 7}), "blocks[0].mixer.head_dim: 7: .* expected an even one"),
        (model({"rotary": {"fraction": 0.5}}), "blocks[0].mixer.rotary.fraction: 0.5: .* expected 1.0"),
        (
            model({"rotary": {"scaling": {**YARN, "fast": 16.0}}}),
            "blocks[0].mixer.rotary.scaling.fast: 16.0: .* expected 32.0",
        ),
        (
            model({"rotary": {"scaling": {**YARN, "truncate": False}}}),
            "blocks[0].mixer.rotary.scaling.truncate: false: .* expected true",
        ),
        (
            model({"query_key_norm": {}, "rotary": {"scaling": {**YARN, "kind": "llama3"}}}),
            "blocks[0].mixer.rotary.scaling: llama3: .* expected none",
        ),
        (model({"soft_cap": 50.0}), "blocks[0].mixer.soft_cap: 50.0: .* expected none"),
        (model({"query_key_norm": {"joint": True}}), "blocks[0].mixer.query_key_norm.joint: true: .* expected false"),
        (model(block={"norm": {"unit_offset": True}}), "blocks[0].norm.unit_offset: true: .* expected false"),
        (model({"query_key_norm": {"eps": 1e-5}}), "blocks[0].mixer.query_key_norm.eps: 1e-05: .* expected 1e-06"),
        (
            model({"query_key_norm": {}, "bias": True}),
            "blocks[0].mixer.out_bias: true: .* expected false",
        ),
        (
            model({"query_key_norm": {}}, {"bias": True}),
            "blocks[0].feed_forward.bias: true: .* expected false",
        ),
        (model({}, {"activation": "relu"}), "blocks[0].feed_forward.activation: relu: .* expected silu"),
        (model({}, {"kind": "mlp"}), "blocks[0].feed_forward.kind: mlp: .* expected glu"),
        (model(block={"feed_forward": None}), "blocks[0].feed_forward: none: .* expected glu"),
        (model(block={"norm": {"kind": "layer"}}), "blocks[0].norm.kind: layer: .* expected rms"),
        (model(block={"norm": {"placement": "post"}}), "blocks[0].norm.placement: post: .* expected pre"),
        (model(block={"residual": "parallel"}), "blocks[0].residual: parallel: .* expected sequential"),
        (model(block={"share_weights": True, "repeat": 2}), "blocks[0].share_weights: true: .* expected false"),
        (model(block={"width": 16}), "blocks[0].width: 16: .* expected none"),
        (model(blocks=[BLOCK, BLOCK | {"norm": {"eps": 1e-5}}]), "blocks[1].norm.eps: 1e-05: .* expected 1e-06"),
        (model(head={"norm": {"eps": 1e-5}}), "head.norm.eps: 1e-05: .* expected 1e-06"),
        (model(head={}), "head.norm: none: .* expected rms"),
        (model(head={"norm": {}, "tied": False, "bias": True}), "head.bias: true: .* expected false"),
        (model(head={"norm": {}, "soft_cap": 30.0}), "head.soft_cap: 30.0: .* expected none"),
        (model(head={"norm": {}, "scale": True}), "head.scale: true: .* expected false"),
        (model(embedding={"scale": True}), "embedding.scale: true: .* expected false"),
        (model(embedding={"positions": "learned"}), "embedding.positions: learned: .* expected none"),
        (model(prefix=True), "prefix: true: .* expected false"),
        (model(context_length=1 << 40), "context_length: 1099511627776: .* expected less than"),
    ],
)
def test_what_a_file_cannot_express_is_refused_by_field(spec: ModelSpec, said: str):
    start, accepted = said.split(" .* ")
    with pytest.raises(UserError) as refused:
        check_architecture(spec, "config.json")
    assert str(refused.value).startswith(f"config.json: {start}")
    assert f" cannot express it; {accepted}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_every_layer_of_equal_blocks_counts():
    spec = model(blocks=[BLOCK | {"repeat": 2}, BLOCK])
    check_architecture(spec, "config.json")
    assert architecture_metadata(spec)["llama.block_count"] == 3


def test_the_gain_of_yarn_is_relative_to_that_of_the_paper():
    """llama.cpp multiplies `attn_factor` by `0.1 ln(factor) + 1`."""
    said = architecture_metadata(model({"rotary": {"scaling": YARN}}))
    assert said["llama.rope.scaling.attn_factor"] == pytest.approx(1)
    said = architecture_metadata(model({"rotary": {"scaling": {**YARN, "attention_factor": 1.5}}}))
    assert said["llama.rope.scaling.attn_factor"] == pytest.approx(1.5 / (1 + 0.1 * math.log(4)))


def test_ntk_is_another_base():
    said = architecture_metadata(model({"rotary": {"scaling": {"kind": "ntk", "factor": 8.0}}}))
    assert said["llama.rope.freq_base"] == pytest.approx(10_000 * 8 ** (8 / 6))
    assert "llama.rope.scaling.type" not in said
