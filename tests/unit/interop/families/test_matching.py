"""Which descriptions are members of a family, whatever way they are said; and what makes one none."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.interop.families import FAMILIES
from linnet.interop.families.matching import match_family, plain_form
from linnet.model.spec import ModelSpec

RMS, LAYER = {"kind": "rms", "eps": 1e-5}, {"kind": "layer", "eps": 1e-5}
YARN = {"kind": "yarn", "factor": 2.5, "trained": 40, "fast": 20.0, "slow": 2.0, "attention_factor": 1.25}
LLAMA3 = {"kind": "llama3", "factor": 4.0, "trained": 40, "fast": 3.0, "slow": 0.5}
SCALINGS = [None, {"kind": "linear", "factor": 3.0}, {"kind": "yarn", "factor": 4.0, "trained": 64}, YARN]
SCALINGS += [{**YARN, "truncate": False}, LLAMA3]
ACTIVATIONS = ["silu", "gelu", "gelu_tanh", "relu", "relu_squared"]


def described(mixer: dict, feed_forward: dict, norm: dict, positions: str = "none", **more: Any) -> dict[str, Any]:
    block = {"mixer": {"kind": "attention", **mixer}, "feed_forward": feed_forward, "norm": norm, **more}
    embedding, head = {"positions": positions}, {"tied": False, "norm": norm}
    sizes = {"vocab_size": 270, "d_model": 24, "context_length": 80}
    return {"name": "mine", **sizes, "embedding": embedding, "blocks": [block], "head": head}


@st.composite
def members(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A model_type, and a description that is of it."""
    kind = draw(st.sampled_from(["llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox"]))
    heads, bias = draw(st.sampled_from([2, 4, 6])), draw(st.booleans())
    norm = {"kind": "layer" if kind.startswith("gpt") else "rms", "eps": draw(st.sampled_from([1e-6, 1e-5]))}
    rotary = {"base": draw(st.sampled_from([500.0, 10_000.0])), "scaling": draw(st.sampled_from(SCALINGS))}
    feed_forward = {"hidden": draw(st.integers(1, 50)), "activation": draw(st.sampled_from(ACTIVATIONS))}
    if kind.startswith("gpt"):
        feed_forward |= {"kind": "mlp", "bias": True}
        mixer = {"heads": heads, "bias": True, "rotary": None}
        more = {"positions": "learned"}
        if kind == "gpt_neox":
            mixer |= {
                "bias": bias,
                "rotary": {**rotary, "fraction": draw(st.sampled_from([1.0, {2: 0.7, 4: 0.4, 6: 0.5}[heads]]))},
            }
            more = {"residual": draw(st.sampled_from(["parallel", "sequential"]))}
    else:
        shared = {"kv_heads": draw(st.sampled_from([None, 1, 2])), "head_dim": draw(st.sampled_from([None, 2, 14]))}
        feed_forward |= {"kind": "glu", "bias": kind == "llama" and draw(st.booleans())}
        mixer = {"heads": heads, **shared, "rotary": rotary, "bias": bias}
        mixer |= {"query_key_norm": norm} if kind == "qwen3" else {}
        mixer |= {"bias": True, "out_bias": False} if kind == "qwen2" else {}
        mixer |= {"bias": False, "window": 16} if kind == "mistral" else {}
        more = {}
    plain = described(mixer, feed_forward, norm, **more)
    plain["blocks"][0]["repeat"], plain["head"]["tied"] = draw(st.integers(1, 3)), draw(st.booleans())
    if kind in ("qwen2", "qwen3") and draw(st.booleans()):
        plain["blocks"] = [*plain["blocks"], *described({**mixer, "window": 16}, feed_forward, norm)["blocks"]]
    return kind, plain


@settings(max_examples=40, deadline=None)
@given(members())
def test_a_member_is_found_and_its_config_describes_all_of_it(found: tuple[str, dict[str, Any]]):
    kind, plain = found
    spec = ModelSpec.parse(plain, "mine")
    member = match_family(spec)
    assert member.model_type == kind
    config = json.loads(json.dumps(member.config()))
    again = type(member).read(config, "config.json").model("mine", "config.json")
    assert plain_form(again) == plain_form(spec)
    assert config["architectures"][0].lower().startswith(kind.replace("_", ""))


LLAMA = described({"heads": 4}, {"kind": "glu", "hidden": 20}, RMS)
GPT2 = described(
    {"heads": 4, "bias": True, "rotary": None}, {"kind": "mlp", "hidden": 20, "bias": True}, LAYER, "learned"
)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("blocks.0.mixer.kv_heads", 4),
        ("blocks.0.mixer.head_dim", 6),
        ("blocks.0.mixer.out_bias", False),
        ("blocks.0.mixer.scale", 6**-0.5),
        ("blocks.0.width", 24),
        ("blocks.0.share_weights", True),
        ("name", "another"),
        ("initialization", {"scale_residual": True}),
    ],
)
def test_the_same_in_other_words(path: str, value: Any):
    assert match_family(changed(LLAMA, path, value)).config() == match_family(ModelSpec.parse(LLAMA, "mine")).config()


def test_layers_in_several_blocks():
    (block,) = LLAMA["blocks"]
    several = ModelSpec.parse({**LLAMA, "blocks": [block, {**block, "repeat": 2}]}, "mine")
    assert match_family(several).config()["num_hidden_layers"] == 3


def test_a_larger_base_is_a_base():
    scaled = changed(LLAMA, "blocks.0.mixer.rotary", {"base": 100.0, "scaling": {"kind": "ntk", "factor": 16.0}})
    assert match_family(scaled).config()["rope_parameters"] == {"rope_type": "default", "rope_theta": 100.0 * 16**1.5}


@pytest.mark.parametrize(
    ("plain", "path", "value", "said"),
    [
        (LLAMA, "blocks.0.mixer", {"kind": "ted"}, "blocks[0].mixer.kind: ted"),
        (LLAMA, "blocks.0.mixer.sink_tokens", 2, "blocks[0].mixer.sink_tokens: 2; mistral has none"),
        (LLAMA, "blocks.0.mixer.sinks", True, "blocks[0].mixer.sinks: true; llama has false"),
        (LLAMA, "blocks.0.mixer.gate", "head", "blocks[0].mixer.gate: head; llama has none"),
        (LLAMA, "blocks.0.mixer.scale", 1.0, "blocks[0].mixer.scale: 1.0; llama has none"),
        (LLAMA, "blocks.0.mixer.value_residual", {}, "blocks[0].mixer.value_residual: one; llama has none"),
        (LLAMA, "blocks.0.mixer.rotary", {"pairing": "adjacent"}, "mixer.rotary.pairing: adjacent; llama has halves"),
        (LLAMA, "blocks.0.mixer.rotary", {"fraction": 0.4}, "mixer.rotary.fraction: 0.4; llama has 1.0"),
        (LLAMA, "blocks.0.mixer.rotary", None, "blocks[0].mixer.rotary: none; llama has one"),
        (LLAMA, "blocks.0.mixer.positions", {"kind": "alibi"}, "blocks[0].mixer.rotary: none; llama has one"),
        (LLAMA, "blocks.0.mixer.query_key_norm", LAYER, "mixer.query_key_norm.kind: layer; qwen3 has rms"),
        (LLAMA, "blocks.0.mixer.query_key_norm", {"eps": 1e-3}, "query_key_norm.eps: 0.001; qwen3 has 1e-05"),
        (LLAMA, "blocks.0.feed_forward", None, "blocks[0].feed_forward: none; llama has glu"),
        (LLAMA, "blocks.0.feed_forward.kind", "mlp", "blocks[0].feed_forward.kind: mlp; llama has glu"),
        (LLAMA, "blocks.0.residual", "parallel", "blocks[0].residual: parallel; llama has sequential"),
        (LLAMA, "blocks.0.norm.placement", "post", "blocks[0].norm.placement: post; llama has pre"),
        (LLAMA, "blocks.0.width", 48, "blocks[0].width: 48; llama has none"),
        (LLAMA, "head.norm", None, "head.norm: none; llama has rms"),
        (LLAMA, "head.norm.eps", 1e-3, "head.norm.eps: 0.001; llama has 1e-05"),
        (LLAMA, "head.soft_cap", 30.0, "head.soft_cap: 30.0; llama has none"),
        (LLAMA, "head.bias", True, "head.bias: true; llama has false"),
        (LLAMA, "embedding.scale", True, "embedding.scale: true; llama has false"),
        (LLAMA, "embedding.positions", "learned", "embedding.positions: learned; llama has none"),
        (LLAMA, "prefix", True, "prefix: true; llama has false"),
        (GPT2, "embedding.norm", RMS, "embedding.norm: rms; gpt2 has none"),
        (GPT2, "embedding.positions", "sinusoidal", "embedding.positions: sinusoidal; gpt2 has learned"),
        (GPT2, "blocks.0.mixer.kv_heads", 2, "blocks[0].mixer.kv_heads: 2; gpt2 has 4"),
        (GPT2, "blocks.0.mixer.bias", False, "blocks[0].mixer.bias: false; gpt2 has true"),
        (GPT2, "blocks.0.mixer.head_dim", 5, "blocks[0].mixer.head_dim: 5; gpt2 has 6"),
    ],
)
def test_what_no_family_has_is_named(plain: dict[str, Any], path: str, value: Any, said: str):
    with pytest.raises(UserError) as refused:
        match_family(changed(plain, path, value))
    ours, _, theirs = said.partition("; ")
    family, _, has = theirs.partition(" has ")
    names = ", ".join(kind.model_fields["model_type"].default for kind in FAMILIES if kind.exported)
    line = f"{ours}: makes it a model of no family of Transformers ({names})"
    assert str(refused.value).startswith("mine: ")
    assert str(refused.value).endswith(f"{line}; the nearest, {family}, has {has}" if theirs else line)


def test_shared_weights_and_unlike_layers_are_named():
    (block,) = LLAMA["blocks"]
    shared = {**LLAMA, "blocks": [{**block, "repeat": 2, "share_weights": True}]}
    with pytest.raises(UserError, match=r"blocks\[0\]\.share_weights: true: .* llama, has false"):
        match_family(ModelSpec.parse(shared, "mine"))
    windowed = {**block, "mixer": {**block["mixer"], "window": 8}}
    with pytest.raises(UserError, match=r"blocks\[1\]\.mixer\.window: 8: "):
        match_family(ModelSpec.parse({**LLAMA, "blocks": [block, windowed]}, "mine"))


def test_heads_that_no_family_can_have():
    odd = changed(
        GPT2, "blocks.0.mixer", {"kind": "attention", "heads": 5, "head_dim": 3, "bias": True, "rotary": None}
    )
    with pytest.raises(UserError, match=r"mine: blocks\[0\]\.mixer\.head_dim: 3, with these positions: makes it"):
        match_family(odd)


def test_every_family_can_be_found():
    assert {kind.model_fields["model_type"].default for kind in FAMILIES if kind.exported} == {
        "llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox",
    }  # fmt: skip


def changed(plain: dict[str, Any], path: str, value: Any) -> ModelSpec:
    copy = json.loads(json.dumps(plain))
    if path.endswith("sink_tokens"):
        copy["blocks"][0]["mixer"]["window"] = 16
    place: Any = copy
    *parents, last = path.split(".")
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
    place[last] = value
    return ModelSpec.parse(copy, "mine")
