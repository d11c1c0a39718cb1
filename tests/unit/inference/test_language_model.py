"""Text in, text out."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_models import CASES, small_decoder, speaker

import linnet
from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.device import resolve_device
from linnet.inference.engine import decode
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.layers.contract import MixerSpec
from linnet.model.store import save_decoder

PROMPTS = ["Once", "", "a longer prompt, é"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = speaker()
    save_decoder(model.decoder, tmp_path / "m")
    model.tokenizer.save(tmp_path / "m" / "tokenizer.json")
    return tmp_path / "m"


def test_the_prompt_is_a_documents_beginning_and_the_answer_its_continuation():
    model = speaker()
    end = model.tokenizer.end_id
    for prompt in PROMPTS:
        ids = [end, *prompt.encode()]
        steps = decode(model.decoder, [ids], 12, Sampling(0), {end}, vocab_size=257)
        expected = bytes(token for (token,) in steps if token is not None).decode("utf-8", "replace")
        assert model.generate(prompt, 12, temperature=0) == expected


@pytest.mark.parametrize("mixer", CASES)
def test_a_list_of_prompts_gives_what_each_gives_alone(mixer: MixerSpec):
    model = speaker(mixer)
    together = model.generate(PROMPTS, 15, temperature=1.0, seed=7)
    assert together == [model.generate(prompt, 15, temperature=1.0, seed=7 + row) for row, prompt in enumerate(PROMPTS)]


def test_no_prompts_give_no_texts():
    assert speaker().generate([], 5) == []


def test_the_pieces_of_a_stream_add_up_to_the_text():
    model = speaker()
    for seed in range(5):
        pieces = list(model.generate("Once", 60, temperature=1.0, seed=seed, stream=True))
        assert "".join(pieces) == model.generate("Once", 60, temperature=1.0, seed=seed)
        assert "" not in pieces


def test_a_character_of_several_bytes_comes_whole(monkeypatch: pytest.MonkeyPatch):
    model = speaker()
    text = "é€😀"
    steps = iter([[byte] for byte in [*text.encode(), 0xC3]])
    monkeypatch.setattr("linnet.inference.language_model.decode", lambda *a, **k: steps)
    assert list(model.generate("", 9, stream=True)) == ["é", "€", "😀", "�"]


def test_it_stops_at_the_end_token(monkeypatch: pytest.MonkeyPatch):
    model = speaker()
    tokens = iter([*b"Hi", model.tokenizer.end_id] * 2)
    monkeypatch.setattr("linnet.inference.streams.choose", lambda *_: torch.tensor([next(tokens)]))
    stream = model.generate("Once", 40, stream=True)
    assert "".join(stream) == model.generate("Once", 40) == "Hi"
    assert (stream.figures.tokens, stream.figures.passes) == (2, 3)


def test_an_end_token_that_is_ignored_counts_and_prints_nothing(monkeypatch: pytest.MonkeyPatch):
    model = speaker()
    end = model.tokenizer.end_id
    tokens = iter([*b"Hi", end, end, *b"Oh"] * 2)
    monkeypatch.setattr("linnet.inference.streams.choose", lambda *_: torch.tensor([next(tokens)]))
    stream = model.generate("Once", 6, stream=True, ignore_eos=True)
    assert "".join(stream) == model.generate("Once", 6, ignore_eos=True) == "HiOh"
    assert stream.figures.tokens == 6


def test_in_a_batch_rows_go_on_after_their_ends_as_they_do_alone():
    model = speaker()
    end = model.tokenizer.end_id
    sampling = Sampling(50.0, seed=3)  # nearly uniform: ends come soon
    rows = [[end, *prompt.encode()] for prompt in PROMPTS]
    written = list(zip(*decode(model.decoder, rows, 900, sampling, vocab_size=257), strict=True))
    assert all(end in row[:-1] for row in written)
    expected = [bytes(token for token in row if token != end).decode("utf-8", "replace") for row in written]
    assert model.generate(PROMPTS, 900, temperature=50.0, seed=3, ignore_eos=True) == expected
    assert model.generate(PROMPTS, 900, temperature=50.0, seed=3) != expected


def test_ids_that_the_tokenizer_does_not_know_are_never_chosen():
    model = speaker(extra_ids=500)
    assert model.generate("Once", 100, temperature=3.0, seed=0)
    assert "".join(model.generate("Once", 100, temperature=3.0, seed=0, stream=True))


def test_the_figures_of_a_stream():
    model = speaker()
    stream = model.generate("Once", 10, temperature=0, stream=True)
    assert stream.figures.tokens == 0
    list(stream)
    figures = stream.figures
    assert (figures.prompt_tokens, figures.tokens, figures.passes) == (5, 10, 10)
    assert figures.state_bytes == model.decoder.initial_state(1, 15).nbytes
    assert figures.seconds_prompt > 0
    assert figures.tokens_per_second == pytest.approx(9 / figures.seconds_decode)


def test_one_token_has_no_speed():
    stream = speaker().generate("Once", 1, stream=True)
    list(stream)
    assert stream.figures.tokens_per_second is None


def test_a_model_folder_is_loaded(folder: Path):
    model = linnet.load(folder, device="cpu")
    assert model.generate(PROMPTS, 9, seed=1) == speaker().generate(PROMPTS, 9, seed=1)
    assert (model.spec.d_model, model.tokenizer.vocab_size) == (16, 257)


def test_the_folder_of_a_training_run_is_loaded(folder: Path):
    run = folder.parent / "run"
    run.mkdir()
    folder.rename(run / "model")
    assert linnet.load(str(run)).generate("Once", 9, seed=1) == speaker().generate("Once", 9, seed=1)


def test_a_folder_that_is_no_model_is_refused(folder: Path):
    with pytest.raises(UserError, match="nowhere: no such folder; expected a model folder"):
        linnet.load("nowhere")
    with pytest.raises(UserError, match=r"neither a model folder nor a run folder with one \(no config\.json\)"):
        linnet.load(folder.parent)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json: no such file"):
        linnet.load(folder)


def test_a_tokenizer_of_another_model_is_refused():
    with pytest.raises(UserError, match="the tokenizer has 257 tokens: expected at most the model's vocab_size"):
        LanguageModel(small_decoder(vocab_size=256), Tokenizer.train("bytes", []))


def test_values_that_cannot_be_are_refused_before_anything_is_computed():
    model = speaker()
    for options, message in [
        ({"temperature": -1.0}, "temperature: -1.0"),
        ({"max_tokens": 0}, "max_tokens: 0"),
        ({"max_tokens": -10}, "max_tokens: -10"),
    ]:
        for stream in (False, True):
            with pytest.raises(UserError, match=message):
                model.generate("Once", **options, stream=stream)
    with pytest.raises(UserError, match="stream: True: expected one prompt, got a list of 2"):
        model.generate(["a", "b"], stream=True)


def test_damaged_weights_are_reported():
    model = speaker()
    with torch.no_grad():
        model.decoder.norm.weight[0] = float("nan")
    with pytest.raises(UserError, match="not finite"):
        model.generate("Once", 5)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "meta", "tpu"])
def test_a_device_that_does_not_exist_is_named(name: str):
    with pytest.raises(UserError, match=f"device: '{name}': expected auto, cpu, cuda"):
        resolve_device(name)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="an Apple GPU")
def test_apples_gpus_are_named_where_they_are_not():
    with pytest.raises(UserError, match="device: 'mps': not available here"):
        resolve_device("mps")


def test_a_device_that_is_not_here_is_named():
    with pytest.raises(UserError, match="device: 'cuda:99': not available here"):
        resolve_device("cuda:99")


@pytest.mark.parametrize(("present", "expected"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_cuda_where_there_is_one(present: bool, expected: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: present)
    assert resolve_device("auto").type == expected


def test_import_linnet_does_not_import_torch():
    code = "import sys, linnet; assert 'torch' not in sys.modules; assert linnet.__version__; linnet.load"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_stop_text_ends_a_continuation_before_it():
    model = speaker()
    for seed in range(4):
        text = model.generate("Once", 60, temperature=1.0, seed=seed)
        for stop in (text[10:12], [text[10:13], text[20], "nowhere in it"]):
            end = min(text.find(one) for one in ([stop] if isinstance(stop, str) else stop[:2]))
            pieces = list(model.generate("Once", 60, temperature=1.0, seed=seed, stop=stop, stream=True))
            assert "".join(pieces) == model.generate("Once", 60, temperature=1.0, seed=seed, stop=stop) == text[:end]
            assert "" not in pieces
        assert model.generate("Once", 60, temperature=1.0, seed=seed, stop=text + "x") == text


def test_each_row_of_a_batch_stops_by_itself():
    model = speaker()
    texts = model.generate(PROMPTS, 40, temperature=1.0, seed=3)
    stop = texts[1][5:7]
    expected = [text.partition(stop)[0] for text in texts]
    assert model.generate(PROMPTS, 40, temperature=1.0, seed=3, stop=stop) == expected != texts


def test_generation_ends_at_a_stop_text(monkeypatch: pytest.MonkeyPatch):
    """What was asked for is not computed and thrown away."""
    model = speaker()
    text = model.generate("Once", 60, temperature=0)
    stream = model.generate("Once", 60, temperature=0, stop=text[3], stream=True)
    assert "".join(stream) == text[: text.find(text[3])] and stream.figures.tokens < 10


@pytest.mark.parametrize("stop", ["", ["a", ""], [3]])
def test_a_stop_text_that_is_none_is_refused(stop):
    with pytest.raises(UserError, match=r"^stop: .*: expected texts that are not empty"):
        speaker().generate("Once", 5, stop=stop)


def test_calling_a_model_generates():
    model = speaker()
    assert model("Once", 5, temperature=0) == model.generate("Once", 5, temperature=0)


def test_the_logits_of_a_text_begin_behind_the_end_token():
    model = speaker()
    logits_TV = model.logits("Once")
    tokens = [model.tokenizer.end_id, *b"Once"]
    assert logits_TV.shape == (5, model.tokenizer.vocab_size)
    assert torch.equal(logits_TV, model.decoder(torch.tensor([tokens]))[0, :, : model.tokenizer.vocab_size])
    (step,) = decode(model.decoder, [tokens], 1, Sampling(0), vocab_size=model.tokenizer.vocab_size)
    assert step == [int(logits_TV[-1].argmax())]


def test_a_model_says_what_it_is():
    model = speaker()
    shown = repr(model)
    assert shown.startswith(
        f"LanguageModel({model.spec.name}: {model.spec.layers} layers of width {model.spec.d_model} ("
    )
    assert shown.endswith(", float64 on cpu)") and " parameters, vocabulary " in shown
    session = linnet.Session(model)
    session.feed("Once")
    assert repr(session) == f"Session({model.spec.name}, 5 tokens)"


def test_a_keyword_that_is_none_names_the_one_that_is_meant():
    model = speaker()
    for function in (model, lambda *words, **named: linnet.Session(model).generate(**named)):
        with pytest.raises(TypeError, match=r"no keyword 'max_new_tokens'; did you mean max_tokens\?"):
            function("Once", max_new_tokens=5)
    with pytest.raises(TypeError, match="no keyword 'do_sample'; expected prompt, max_tokens, "):
        model.generate("Once", do_sample=True)
