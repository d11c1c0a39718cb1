"""Models of ours become folders of Transformers: held to the model, bit for bit on the way back, whole or not there."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from families.test_matching import GPT2, LLAMA, members
from hypothesis import given, settings
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_originals import CONFIGS, TEXT, chat_tokenizer, write

from linnet.core.errors import UserError
from linnet.data.chat_setup import chat_setup
from linnet.data.chat_template import files_of_template
from linnet.data.chat_tokens import ChatEncoder
from linnet.data.conversations import parse_conversation
from linnet.data.tokenizer import Tokenizer
from linnet.inference.language_model import LanguageModel, load
from linnet.interop.exporters import export
from linnet.interop.transformers_convert import export_transformers, import_transformers
from linnet.interop.transformers_folder import read_family, write_folder
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model

pytestmark = pytest.mark.usefixtures("warm_python")

transformers = pytest.importorskip("transformers")
OUT = "linnet.interop.transformers_convert"


def model(plain: dict[str, Any] = LLAMA, tokenizer: Tokenizer | None = None) -> LanguageModel:
    """With weights away from their start, norms and biases too."""
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse({"name": "mine", **plain}, "mine"))
    for parameter in decoder.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return LanguageModel(decoder, tokenizer or Tokenizer.train("bytes", []))


def folder(path: Path, plain: dict[str, Any] = LLAMA) -> Path:
    made = model(plain)
    write_model(path, made.decoder, made.tokenizer, {})
    return path


def assert_same_bits(one: Path, other: Path) -> None:
    ours, others = (load_file(path / "model.safetensors") for path in (one, other))
    assert ours.keys() == others.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == others[name].dtype and torch.equal(tensor, others[name]), name


@pytest.mark.parametrize("name", CONFIGS)
def test_there_and_back_is_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """Import, export, import: ours bit for bit, and theirs as it was published."""
    steps = 200 if name == "llama" else 8
    monkeypatch.setattr("linnet.interop.parity.STEPS", steps)
    write(tmp_path / "theirs", name)
    import_transformers(tmp_path / "theirs", tmp_path / "ours")
    made = export(tmp_path / "ours", tmp_path / "again", to="transformers")
    import_transformers(tmp_path / "again", tmp_path / "back")
    assert_same_bits(tmp_path / "ours", tmp_path / "back")
    assert (tmp_path / "ours" / "tokenizer.json").read_bytes() == (tmp_path / "back" / "tokenizer.json").read_bytes()
    kind = json.loads((tmp_path / "theirs" / "config.json").read_text())["model_type"]
    if name == "opt":  # whose rows for padding are not kept
        assert made.figures["model_type"] == "linnet"
        return
    published = {key.replace("lm_head", "head").replace("embed_out", "head"): tensor for key, tensor in
                 load_file(tmp_path / "theirs" / "model.safetensors").items()}  # fmt: skip
    written = load_file(tmp_path / "again" / "model.safetensors")
    for key, tensor in written.items():
        assert torch.equal(tensor, published.pop(key.replace("lm_head", "head").replace("embed_out", "head"))), key
    assert not published
    assert made.figures["model_type"] == kind
    assert made.figures["greedy_tokens"] == steps
    assert 0 < made.figures["logits_error"] < 1e-4


def test_a_model_that_no_longer_fits_its_published_form_is_linnets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Phi's one norm of two branches is two norms here, which training moves apart."""
    monkeypatch.setattr("linnet.interop.parity.STEPS", 5)
    write(tmp_path / "theirs", "phi")
    import_transformers(tmp_path / "theirs", tmp_path / "ours")
    ours = load(tmp_path / "ours", device="cpu")
    next(parameter for name, parameter in ours.decoder.named_parameters() if "feed_forward_norm" in name).data += 0.1
    assert export_transformers(ours, tmp_path / "again").figures["model_type"] == "linnet"


@torch.no_grad()
@settings(max_examples=6, deadline=None)
@given(members())
def test_any_member_of_a_family_computes_the_same_in_transformers(found: tuple[str, dict[str, Any]]):
    made = model({**found[1], "context_length": 20})
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        out, back = Path(name) / "out", Path(name) / "back"
        patch.setattr("linnet.interop.parity.STEPS", 12)
        export_transformers(made, out)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(out)
        import_transformers(out, back)
        again = load(back, device="cpu").decoder
    assert theirs.config.model_type == found[0]
    tokens = torch.randint(257, (2, 20))
    torch.testing.assert_close(theirs(tokens).logits, made.decoder(tokens), rtol=1e-4, atol=1e-4)
    assert torch.equal(again(tokens), made.decoder(tokens))


@pytest.mark.parametrize("kind", ["bytes", "char", "bpe", "unigram"])
def test_a_tokenizer_of_each_kind(tmp_path: Path, kind: str):
    tokenizer = Tokenizer.train(kind, [TEXT, "ä 1"], None if kind in ("bytes", "char") else 280)
    plain = {**LLAMA, "vocab_size": tokenizer.vocab_size + 3}
    made = model(plain, tokenizer)
    export_transformers(made, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ("", "Once upon a time", "  Ж 🐦\n\tx"):
        assert theirs(text)["input_ids"] == made.prompt_tokens(text)
        assert theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True) == text
    assert theirs.eos_token_id == theirs.bos_token_id == tokenizer.end_id
    assert theirs.all_special_ids == [tokenizer.end_id]
    assert theirs.model_max_length == 80
    import_transformers(tmp_path / "out", tmp_path / "back")
    assert load(tmp_path / "back", device="cpu").tokenizer.hash == tokenizer.hash


def test_what_begins_a_text_elsewhere_begins_it_still(tmp_path: Path):
    """Llama 2 begins with <s>, which its tokenizer.json says."""
    write(tmp_path / "theirs", "llama")
    path = tmp_path / "theirs" / "tokenizer.json"
    definition = json.loads(path.read_text())
    first = definition["model"]["vocab"]["A"]
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"A": {"id": "A", "ids": [first], "tokens": ["A"]}},
    }
    path.write_text(json.dumps(definition))
    import_transformers(tmp_path / "theirs", tmp_path / "ours")
    for name, bos in (("again", 0), ("anew", first)):  # as published, and of a model without the published files
        export(tmp_path / "ours", tmp_path / name, to="transformers")
        assert json.loads((tmp_path / name / "config.json").read_text())["bos_token_id"] == bos
        assert transformers.AutoTokenizer.from_pretrained(tmp_path / name)("Once")["input_ids"][0] == first
        shutil.rmtree(tmp_path / "ours" / "published", ignore_errors=True)


def test_the_check_ends_with_learned_positions_and_reports_it(tmp_path: Path):
    found = export_transformers(model(GPT2), tmp_path / "out")
    assert found.figures["greedy_tokens"] == 73
    assert found.messages[0] == "of the family gpt2"
    assert found.messages[1].startswith("by Transformers: 73 of 73 greedy tokens the same (learned positions")


@torch.no_grad()
def test_it_generates_there_what_it_generates_here(tmp_path: Path):
    made = model(GPT2)
    export_transformers(made, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    prompt = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("Once upon", return_tensors="pt")
    ids = theirs.generate(**prompt, do_sample=False, max_new_tokens=30)[0, prompt["input_ids"].shape[1] :].tolist()
    assert made.tokenizer.decode(ids) == made.generate("Once upon", max_tokens=30, temperature=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_of_fewer_bits(tmp_path: Path, dtype: str):
    made = model()
    found = export_transformers(made, tmp_path / "out", precision=dtype)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert {str(tensor.dtype) for tensor in stored.values()} == {f"torch.{dtype}"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == found.figures["dtype"] == dtype
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert found.weights_bytes == (tmp_path / "out" / "model.safetensors").stat().st_size
    if dtype == "float32":
        assert "rounding_logits_error" not in found.figures and len(found.messages) == 2
    else:
        assert 1e-4 < found.figures["rounding_logits_error"] < 0.5
        assert found.messages[2].startswith(f"weights of {dtype}: logits within ")


def test_a_weight_that_a_type_cannot_hold(tmp_path: Path):
    made = model()
    made.decoder.state_dict()["norm.weight"][3] = 1e6
    with pytest.raises(
        UserError, match=r"precision: float16: tensor norm\.weight has a weight of 1e\+06, too large for it"
    ):
        export_transformers(made, tmp_path / "out", precision="float16")
    assert not list(tmp_path.iterdir())


def with_another_weight(folder: Path) -> None:
    path = folder / "model.safetensors"
    named = load_file(path)
    named["model.layers.0.mlp.down_proj.weight"][5, 7] += 0.05
    save_file(named, path, {"format": "pt"})


def with_another_config(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "rope_parameters": {"rope_type": "default", "rope_theta": 9000.0}}))


def with_another_token(folder: Path) -> None:
    path = folder / "tokenizer.json"
    definition = json.loads(path.read_text())
    vocab = definition["model"]["vocab"]
    vocab["e"], vocab["f"] = vocab["f"], vocab["e"]
    path.write_text(json.dumps(definition))


def with_another_end(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": "x"}))


def with_another_decoder(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "decoder": {"type": "Fuse"}}))


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (with_another_weight, r"out: after \d+ tokens logits by Transformers differ by \S+ of their spread from those"),
        (with_another_config, r"out: after 2 tokens logits by Transformers differ by "),
        (with_another_token, r"out: .* by Transformers: expected \[.*\], as here"),
        (with_another_end, r"out: ends a text at 256 here, \d+, 256 in Transformers"),
        (with_another_decoder, r"out: .* in Transformers: expected the same text"),
        (without_weights, r"out: Transformers cannot read it \("),
    ],
)
def test_the_gate_lets_nothing_else_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], said: str
):

    def written(folder: Path, *parts: Any) -> None:
        write_folder(folder, *parts)
        damage(folder)

    monkeypatch.setattr(f"{OUT}.write_folder", written)
    with pytest.raises(UserError, match=said) as refused:
        export_transformers(model(), tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_difference_that_comes_late_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The row of the last position, which only the last greedy step reaches."""

    def written(folder: Path, *parts: Any) -> None:
        write_folder(folder, *parts)
        named = load_file(folder / "model.safetensors")
        named["transformer.wpe.weight"][79] = 1 - named["transformer.wpe.weight"][79]
        save_file(named, folder / "model.safetensors", {"format": "pt"})

    monkeypatch.setattr(f"{OUT}.write_folder", written)
    with pytest.raises(UserError, match=r"out: after 80 tokens "):
        export_transformers(model(GPT2), tmp_path / "out")


def test_a_model_of_no_family_is_linnets_own(tmp_path: Path):
    found = export_transformers(model({**LLAMA, "blocks": [{"mixer": {"kind": "ted"}}]}), tmp_path / "out")
    assert found.messages[0].startswith("mine: blocks[0].mixer.kind: ted: makes it a model of no family")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "linnet"


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_no_folder(tmp_path: Path):
    source = folder(tmp_path / "model")
    die = "import os, signal; from linnet.interop import exporters, transformers_convert\n"
    die += "transformers_convert.load_original = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
    code = f"{die}exporters.export({str(source)!r}, {str(tmp_path / 'out')!r}, to='transformers')"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(".out.*.linnet-partial")
    assert (left / "model.safetensors").is_file() and not (tmp_path / "out").exists()
    export(source, tmp_path / "out", to="transformers")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


KEPT = {
    "chat_template.jinja": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}\n",
    "additional_chat_templates/tool.jinja": "{{ tools }}",
    "LICENSE": "for all\r\n",
    "vocab.json": '{ "a":1}',
}


def chat_folder(path: Path, name: str = "llama") -> Path:
    """A published chat model: other ends than the usual ones, and files that linnet does not read."""
    write(path, name)
    chat_tokenizer(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "their_own": [1, 2]}))
    for file, text in KEPT.items():
        (path / file).parent.mkdir(exist_ok=True)
        (path / file).write_bytes(text.encode())
    for file in ("pytorch_model.bin", ".gitattributes", "model.safetensors.index.json"):
        (path / file).write_bytes(b"\x80 not to be read")
    return path


def texts_of(folder: Path) -> dict[str, bytes]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name: (folder / name).read_bytes() for name in names if name != "model.safetensors"}


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
def test_a_chat_model_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr("linnet.interop.parity.STEPS", 5)
    chat_folder(tmp_path / "theirs", name)
    import_transformers(tmp_path / "theirs", tmp_path / "ours")
    export(tmp_path / "ours", tmp_path / "again", to="transformers")
    before, after = texts_of(tmp_path / "theirs"), texts_of(tmp_path / "again")
    for file in ("pytorch_model.bin", ".gitattributes", "model.safetensors.index.json"):
        del before[file]
    assert after == before and KEPT.keys() < after.keys()
    # Again, of a model that was frozen, trained or converted in between: what still holds.
    export(tmp_path / "ours", tmp_path / "half", to="transformers", precision="bfloat16")
    changed = {file for file, text in texts_of(tmp_path / "half").items() if text != before[file]}
    assert changed == {"config.json"}
    config = json.loads((tmp_path / "half" / "config.json").read_text())
    assert config == {**json.loads(before["config.json"]), "dtype": "bfloat16"}


def test_an_end_that_was_chosen_is_written_and_the_rest_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("linnet.interop.parity.STEPS", 5)
    chat_folder(tmp_path / "theirs")
    import_transformers(tmp_path / "theirs", tmp_path / "ours", end=["<|eot|>", "<|im_end|>"])
    export(tmp_path / "ours", tmp_path / "again", to="transformers")
    read = {name: json.loads(text) for name, text in texts_of(tmp_path / "again").items() if name.endswith("g.json")}
    assert read["tokenizer_config.json"]["eos_token"] == "<|eot|>"
    assert "chat_template" in read["tokenizer_config.json"] and read["generation_config.json"]["top_k"] == 7
    assert read["generation_config.json"]["eos_token_id"] == read["config.json"]["eos_token_id"] == [289, 288]
    assert texts_of(tmp_path / "again").items() >= {name: text.encode() for name, text in KEPT.items()}.items()


def test_a_kept_file_that_was_changed_is_found(tmp_path: Path):
    chat_folder(tmp_path / "theirs")
    import_transformers(tmp_path / "theirs", tmp_path / "ours")
    (tmp_path / "ours" / "published" / "LICENSE").write_text("for none")
    with pytest.raises(UserError, match=r"published/LICENSE: 8 bytes, manifest\.json says 9"):
        export(tmp_path / "ours", tmp_path / "again", to="transformers")


def test_a_changed_tokenizer_takes_other_forms_of_its_vocabulary_along(tmp_path: Path):
    """Transformers reads `vocab.json` and `merges.txt` of a GPT-2; the tokenizer that a run made has others."""
    chat_folder(tmp_path / "theirs", "gpt2")
    (tmp_path / "theirs" / "merges.txt").write_text("#version: 0.2\n")
    import_transformers(tmp_path / "theirs", tmp_path / "ours")
    decoder, published = load(tmp_path / "ours", device="cpu").decoder, tmp_path / "ours" / "published"
    family = read_family(published)
    for name, other in (("same", Tokenizer.load(tmp_path / "ours")), ("other", Tokenizer.train("bytes", []))):
        (tmp_path / name).mkdir()
        write_folder(tmp_path / name, family, decoder, other, published)
        kept = {path.name for path in (tmp_path / name).iterdir()}
        assert ({"vocab.json", "merges.txt"} <= kept) == (name == "same")
        assert {"LICENSE", "chat_template.jinja", "tokenizer.json"} <= kept


def test_an_end_behind_a_gap_in_the_ids_goes_in_and_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file of a tokenizer with ids of its own: Transformers reads it with other ids, and ours with those of it."""
    monkeypatch.setattr("linnet.interop.parity.STEPS", 5)
    chat_folder(tmp_path / "theirs")
    written = json.loads((tmp_path / "theirs" / "tokenizer.json").read_text())
    last = written["added_tokens"][-1]
    last["id"] = 289
    written["added_tokens"] = [one for one in written["added_tokens"] if one["content"] != "<|im_end|>"]
    (tmp_path / "theirs" / "tokenizer.json").write_text(json.dumps(written))
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eot|>"}))
    (tmp_path / "theirs" / "generation_config.json").write_text(json.dumps({"eos_token_id": 289}))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs").eos_token_id == 288
    import_transformers(tmp_path / "theirs", tmp_path / "ours", check=True)
    assert load(tmp_path / "ours", device="cpu").tokenizer.end_ids == (289,)
    export(tmp_path / "ours", tmp_path / "again", to="transformers")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "again").eos_token_id == 289


def test_a_template_that_a_model_was_given_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Transformers makes the same tokens of a conversation, and trains on the same."""
    monkeypatch.setattr("linnet.interop.parity.STEPS", 10)
    base = folder(tmp_path / "base")
    setup = chat_setup([base])
    grown = model({**LLAMA, "vocab_size": setup.tokenizer.vocab_size}, setup.tokenizer)
    beside = files_of_template(setup.template.source, setup.template.special_tokens)
    write_model(tmp_path / "ours", grown.decoder, setup.tokenizer, {}, beside=beside)
    export(tmp_path / "ours", tmp_path / "theirs", to="transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    talk = [("system", "Be brief."), ("user", "Who?"), ("assistant", "A bird."), ("user", "When?"), ("assistant", "1")]
    messages = [{"role": role, "content": content} for role, content in talk]
    found = theirs.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    conversation = parse_conversation(json.dumps({"messages": messages}), "here")
    expected = ChatEncoder(setup.template, setup.tokenizer).encode(conversation)
    assert found["input_ids"] == expected.ids
    assert found["assistant_masks"] == list(map(int, expected.trained))
    assert theirs.eos_token == "<|im_end|>" and theirs.bos_token == "<|end|>"
