"""Models of Transformers on disk become models of ours: ids, logits, greedy tokens; what cannot be said is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_originals import CONFIGS, TEXT, chat_tokenizer, write

from linnet.core.errors import UserError
from linnet.evaluation.tasks.generation import GenerationRequest, Generator
from linnet.evaluation.tasks.scorer import StateFactory
from linnet.inference.language_model import load
from linnet.inference.sampling import Sampling
from linnet.inference.session import Session
from linnet.interop.families.gpt import GptNeoX
from linnet.interop.transformers_convert import import_transformers

transformers = pytest.importorskip("transformers")
PLAIN = GptNeoX.to_dict


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_from_disk_is_the_original(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    steps = 200 if name in ("llama", "gpt2 untied") else 12
    monkeypatch.setattr("linnet.interop.parity.STEPS", steps)
    theirs = write(tmp_path / "theirs", name)
    _, parity = import_transformers(tmp_path / "theirs", tmp_path / "ours", check=True)
    ours = load(tmp_path / "ours", device="cpu")
    tokens = torch.randint(290, (2, 50))
    torch.testing.assert_close(ours.decoder(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)
    prompt = torch.tensor([ours.prompt_tokens("Once upon")])
    made = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=12, eos_token_id=None
    )
    expected = ours.tokenizer.decode(made[0, prompt.shape[1] :].tolist())
    assert ours.generate("Once upon", max_tokens=12, temperature=0, ignore_eos=True) == expected
    assert parity is not None and 0 < parity.error < 1e-4
    assert parity.steps == (53 if name == "gpt2 untied" else steps)
    figures = json.loads((tmp_path / "ours" / "run.json").read_text())["parity"]
    assert figures == parity.figures and figures["greedy_tokens"] == figures["same_tokens"] == parity.steps


def test_the_ids_are_those_of_transformers(tmp_path: Path):
    write(tmp_path / "theirs", "llama")
    import_transformers(tmp_path / "theirs", tmp_path / "ours")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "ours", device="cpu").tokenizer
    for text in (TEXT, "", " x", "\n\n 12 345", "Ж 🐦"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]


def test_llama_3_has_an_end_of_its_own(tmp_path: Path):
    write(tmp_path / "theirs", "llama")
    path = tmp_path / "theirs" / "tokenizer.json"
    path.write_text(path.read_text().replace("<|endoftext|>", "<|end_of_text|>"))
    import_transformers(tmp_path / "theirs", tmp_path / "ours")
    assert load(tmp_path / "ours", device="cpu").tokenizer.end_id == 0


def test_weights_in_several_files(tmp_path: Path):
    write(tmp_path / "theirs", "llama")
    write(tmp_path / "sharded", "llama", max_shard_size="20KB")
    assert not (tmp_path / "sharded" / "model.safetensors").exists()
    one, _ = import_transformers(tmp_path / "theirs", tmp_path / "one")
    many, _ = import_transformers(tmp_path / "sharded", tmp_path / "many")
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(many.state_dict()[name], tensor, rtol=0, atol=0)
    hashes = json.loads((tmp_path / "many" / "run.json").read_text())["sha256"]
    assert len(hashes) > 2


def test_an_index_names_files_beside_it_alone(tmp_path: Path):
    write(tmp_path / "theirs", "llama", max_shard_size="20KB")
    index = tmp_path / "theirs" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "../elsewhere.safetensors"}}))
    with pytest.raises(UserError, match=r"weight_map: '\.\./elsewhere\.safetensors': expected the name of"):
        import_transformers(tmp_path / "theirs", tmp_path / "ours")


def changed(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("llama", {"model_type": "unheard_of"}, "model_type: 'unheard_of': expected one of llama, mistral, qwen2, "),
        (
            "llama",
            {"model_type": "falcon_h1"},
            "model_type: 'falcon_h1': each layer has attention and Mamba-2 side by side; expected one of llama, ",
        ),
        ("falcon", {"alibi": True}, "alibi: True: "),
        ("falcon", {"new_decoder_architecture": True}, "new_decoder_architecture: True: "),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv: 8.0: "),
        ("granite of both layers", {"num_local_experts": 2}, "num_local_experts: 2: must be 0"),
        (
            "granite of both layers",
            {"layer_types": ["attention"]},
            "layer_types: 1 layers: must be num_hidden_layers, 2",
        ),
        ("granite of both layers", {"hidden_act": "gelu"}, "hidden_act: gelu: must be silu with layers of Mamba-2"),
        ("granite of both layers", {"mamba_n_heads": 5}, "mamba_n_heads: 5: must be 48 / mamba_d_head"),
        (
            "granite of both layers",
            {"time_step_limit": [0.01, 0.1]},
            "time_step_limit: [0.01, 0.1]: must be 0.0 and Infinity",
        ),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers: 1 layers: must be at least num_hidden_layers, 2"),
        (
            "smollm3",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types: sliding_attention: requires use_sliding_window: true and a sliding_window",
        ),
        (
            "llama",
            {"rope_parameters": {"long_factor": [1.0], "rope_type": "longrope"}},
            "rope_parameters.rope_type: 'longrope': must be one of default, linear, dynamic, yarn, llama3",
        ),
        (
            "llama",
            {"rope_scaling": {"type": "llama3", "factor": 2.0}},
            "rope_scaling.low_freq_factor: missing: rope_type llama3 requires a number",
        ),
        ("llama", {"hidden_act": "mish"}, "hidden_act: 'mish'"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config: "),
        ("qwen2", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types[1]: 'linear_attention'"),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types: 1 layers: must be num_hidden_layers, 2"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: True"),
        ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": 1.5}}, "rope_parameters.partial_rotary_factor: 1.5"),
    ],
)
def test_unsupported_features_are_refused_by_field(tmp_path: Path, name: str, fields: dict, said: str):
    write(tmp_path / "theirs", name)
    changed(tmp_path / "theirs", **fields)
    with pytest.raises(UserError) as refused:
        import_transformers(tmp_path / "theirs", tmp_path / "ours")
    assert str(refused.value).startswith(f"{tmp_path / 'theirs' / 'config.json'}: {said}")
    assert not (tmp_path / "ours").exists()


@torch.no_grad()
def test_the_gate_holds_the_model_to_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A field that is read, but wrongly, does not pass."""
    write(tmp_path / "theirs", "gpt_neox")
    monkeypatch.setattr("linnet.interop.families.gpt.GptNeoX.to_dict", with_adjacent_pairs)
    with pytest.raises(UserError, match=r"theirs: after 2 tokens logits by Transformers differ by .* of their spread"):
        import_transformers(tmp_path / "theirs", tmp_path / "ours", check=True)
    assert not (tmp_path / "ours").exists()


def with_adjacent_pairs(family: Any) -> dict[str, Any]:
    plain = PLAIN(family)
    plain["blocks"][0]["mixer"]["rotary"]["pairing"] = "adjacent"
    return plain


def test_older_files_say_the_same(tmp_path: Path):
    """Names of Transformers 4, tensors that are no weights, the head a second time."""
    write(tmp_path / "new", "gpt_neox")
    write(tmp_path / "old", "gpt_neox")
    config = json.loads((tmp_path / "old" / "config.json").read_text())
    del config["rope_parameters"]
    config |= {"rotary_pct": 0.7, "rotary_emb_base": 9000}
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    named = load_file(tmp_path / "old" / "model.safetensors")
    assert "embed_out.weight" in named or "lm_head.weight" in named
    named = {name.replace("lm_head", "embed_out"): tensor for name, tensor in named.items()}
    named["gpt_neox.layers.0.attention.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.uint8)
    named["gpt_neox.layers.1.attention.rotary_emb.inv_freq"] = torch.ones(1)
    save_file(named, tmp_path / "old" / "model.safetensors")
    new, _ = import_transformers(tmp_path / "new", tmp_path / "out-new")
    old, _ = import_transformers(tmp_path / "old", tmp_path / "out-old")
    assert old.spec.replace(name="x") == new.spec.replace(name="x")
    for name, tensor in new.state_dict().items():
        torch.testing.assert_close(old.state_dict()[name], tensor, rtol=0, atol=0)


def test_gpt2_without_prefix_and_with_its_head_twice(tmp_path: Path):
    write(tmp_path / "theirs", "gpt2")
    path = tmp_path / "theirs" / "model.safetensors"
    named = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    named |= {"lm_head.weight": named["wte.weight"].clone(), "h.0.attn.bias": torch.ones(1, 1, 8, 8)}
    save_file(named, path)
    _, parity = import_transformers(tmp_path / "theirs", tmp_path / "ours", check=True)
    assert parity is not None


def test_a_tensor_that_does_not_fit_is_named_as_the_file_has_it(tmp_path: Path):
    write(tmp_path / "theirs", "gpt2")
    path = tmp_path / "theirs" / "model.safetensors"
    named = load_file(path)
    named["transformer.h.1.mlp.c_fc.weight"] = torch.ones(24, 95)
    save_file(named, path)
    with pytest.raises(
        UserError, match=r"h\.1\.mlp\.c_fc\.weight has shape \[24, 95\], the model in .* has \[24, 96\]"
    ):
        import_transformers(tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str):
    write(tmp_path / "theirs", "llama")
    (tmp_path / "theirs" / missing).unlink()
    with pytest.raises(UserError, match=f"theirs: has no {missing}"):
        import_transformers(tmp_path / "theirs", tmp_path / "ours")


@torch.no_grad()
@pytest.mark.parametrize("stop", [0, 288, 289])
def test_each_end_that_a_folder_names_ends_a_text(tmp_path: Path, stop: int):
    """Llama 3 Instruct's shape: a list that holds an end of linnet's and others."""
    write(tmp_path / "theirs", "llama")
    chat_tokenizer(tmp_path / "theirs")
    import_transformers(tmp_path / "theirs", tmp_path / "ours")
    ours = load(tmp_path / "ours", device="cpu")
    assert ours.tokenizer.end_ids == (288, 0, 289)
    hidden_BTD, head = ours.decoder.hidden(torch.tensor([ours.prompt_tokens("Once")])), ours.decoder.head
    assert head is not None
    head.weight.zero_()
    head.weight[stop] = hidden_BTD[0, -1]  # the one logit above zero
    assert ours.generate("Once", max_tokens=5, temperature=0) == ""
    session = Session(ours)
    session.feed("Once")
    assert "".join(session.stream(5, Sampling(temperature=0.0))) == ""
    assert session.tokens == len(ours.prompt_tokens("Once")) + 1
    request = GenerationRequest(tuple(ours.prompt_tokens("Once")), (), 5)
    assert Generator(StateFactory.of_model(ours), ours.tokenizer).generate([request]) == [""]


@torch.no_grad()
def test_a_prompt_with_control_tokens_addresses_a_chat_model(tmp_path: Path):
    """With names of special tokens parsed, a prompt has the ids of Transformers, in every way to give it."""
    theirs = write(tmp_path / "theirs", "llama")
    chat_tokenizer(tmp_path / "theirs")
    import_transformers(tmp_path / "theirs", tmp_path / "ours")
    ours = load(tmp_path / "ours", device="cpu")
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>it\n"
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")(prompt, return_tensors="pt")
    made = theirs.generate(**inputs, do_sample=False, max_new_tokens=9, eos_token_id=None)
    expected = ours.tokenizer.decode(made[0, inputs["input_ids"].shape[1] :].tolist())
    settings: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    assert ours.generate(prompt, 9, parse_special=True, **settings) == expected
    assert ours.generate([prompt, prompt], 9, parse_special=True, **settings) == [expected] * 2
    assert "".join(ours.generate(prompt, 9, parse_special=True, stream=True, **settings)) == expected
    session = Session(ours.parsing_special())
    session.feed(prompt)
    assert session.tokens == inputs["input_ids"].shape[1] and session.generate(9, **settings) == expected
    assert len(ours.prompt_tokens(prompt)) > inputs["input_ids"].shape[1] + 9


def test_an_end_that_is_given_overrides_the_folder(tmp_path: Path):
    write(tmp_path / "theirs", "llama")
    chat_tokenizer(tmp_path / "theirs")
    import_transformers(tmp_path / "theirs", tmp_path / "ours", end=["<|endoftext|>"])
    assert load(tmp_path / "ours", device="cpu").tokenizer.end_ids == (0,)
    with pytest.raises(UserError, match=r"end: <eos>: .*tokenizer\.json has no such token"):
        import_transformers(tmp_path / "theirs", tmp_path / "other", end=["<eos>"])
    assert not (tmp_path / "other").exists()


def test_dynamic_scaling_is_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write(tmp_path / "theirs", "llama")
    changed(tmp_path / "theirs", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5000.0})
    _, parity = import_transformers(tmp_path / "theirs", tmp_path / "ours", check=True)
    (record,) = caplog.records
    assert record.getMessage().endswith("rope_type: dynamic: positions from 320 on are not scaled here")
    assert parity is not None


@pytest.mark.parametrize("add", [0.0, 1.0])
def test_another_head_than_the_tied_one_is_imported(tmp_path: Path, add: float):
    write(tmp_path / "theirs", "qwen2")
    path = tmp_path / "theirs" / "model.safetensors"
    named = load_file(path)
    save_file({**named, "lm_head.weight": named["model.embed_tokens.weight"] + add}, path, {"format": "pt"})
    decoder, parity = import_transformers(tmp_path / "theirs", tmp_path / "ours", check=True)
    assert decoder.spec.head.tied == (add == 0)
    assert parity is not None
