"""Text in, text out."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_models import CASES, small_decoder, speaker

import linnet
from linnet.core.errors import UserError
from linnet.core.system import resolve_device
from linnet.data.tokenizer import Tokenizer
from linnet.inference.constrained import constraint_of
from linnet.inference.decode import decode
from linnet.inference.language_model import LanguageModel, load
from linnet.inference.readers import Caches
from linnet.inference.sampling import Sampling
from linnet.layers.contract import MixerSpec
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import save_decoder

every_mixer = pytest.mark.parametrize("mixer", CASES)
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


def test_a_prompt_may_be_its_tokens_which_are_not_made_again(monkeypatch: pytest.MonkeyPatch):
    model, sampling = speaker(), Sampling(temperature=1.0, seed=3)
    expected, tokens = "".join(model.stream("Once", 30, sampling)), model.prompt_tokens("Once")
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("tokenized again"))
    assert "".join(model.stream(tokens, 30, sampling)) == expected


def test_a_character_of_several_bytes_comes_whole(monkeypatch: pytest.MonkeyPatch):
    model = speaker()
    text = "é€😀"
    tokens = iter([*text.encode(), 0xC3] * 2)
    monkeypatch.setattr("linnet.inference.streams.choose_tokens", lambda *_: [next(tokens)])
    assert model.generate("", 10) == "é€😀�"
    assert list(model.generate("", 10, stream=True)) == ["é", "€", "😀", "�"]


def test_it_stops_at_the_end_token(monkeypatch: pytest.MonkeyPatch):
    model = speaker()
    tokens = iter([*b"Hi", model.tokenizer.end_id] * 2)
    monkeypatch.setattr("linnet.inference.streams.choose_tokens", lambda *_: [next(tokens)])
    stream = model.generate("Once", 40, stream=True)
    assert "".join(stream) == model.generate("Once", 40) == "Hi"
    assert (stream.figures.tokens, stream.figures.passes) == (2, 3)


def test_an_end_token_that_is_ignored_counts_and_prints_nothing(monkeypatch: pytest.MonkeyPatch):
    model = speaker()
    end = model.tokenizer.end_id
    tokens = iter([*b"Hi", end, end, *b"Oh"] * 2)
    monkeypatch.setattr("linnet.inference.streams.choose_tokens", lambda *_: [next(tokens)])
    stream = model.generate("Once", 6, stream=True, ignore_eos=True)
    assert "".join(stream) == model.generate("Once", 6, ignore_eos=True) == "HiOh"
    assert stream.figures.tokens == 6


def test_in_a_batch_rows_go_on_after_their_ends_as_they_do_alone():
    model = speaker()
    end = model.tokenizer.end_id
    sampling = Sampling(50.0, seed=14)  # nearly uniform: ends come soon
    rows = [[end, *prompt.encode()] for prompt in PROMPTS]
    written = list(zip(*decode(model.decoder, rows, 120, sampling, vocab_size=257), strict=True))
    assert all(end in row[:-1] for row in written)
    expected = [bytes(token for token in row if token != end).decode("utf-8", "replace") for row in written]
    assert model.generate(PROMPTS, 120, temperature=50.0, seed=14, ignore_eos=True) == expected
    assert model.generate(PROMPTS, 120, temperature=50.0, seed=14) != expected


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
    with pytest.raises(UserError, match=r"^decoder: 'runs/x': expected a decoder; linnet\.load reads a model"):
        LanguageModel("runs/x", Tokenizer.train("bytes", []))
    with pytest.raises(UserError, match=r"^tokenizer: 5: expected a tokenizer, as Tokenizer\.load reads it$"):
        LanguageModel(small_decoder(vocab_size=256), 5)


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.generate(5), "prompt: 5: expected a text, or a list of texts"),
        (lambda model: model.generate(None), "prompt: None: expected a text, or a list of texts"),
        (lambda model: model.generate(["a", b"b"]), "prompt: b'b': expected a text, or a list of texts"),
        (lambda model: model.generate({"a": 1}), "prompt: {'a': 1}: expected a text, or a list of texts"),
        (lambda model: model.generate("a", beams=2, input=5), "input: 5: expected a text, or a list of texts"),
        (lambda model: model.stream("a", 2, Sampling(), input=5), "input: 5: expected a text"),
        (lambda model: model.generate("a", "5"), "max_tokens: '5': expected a whole number, at least 1"),
        (lambda model: model.generate("a", 5.0, draft=model), "max_tokens: 5.0: expected a whole number, at least 1"),
        (lambda model: model.events("a", True), "max_tokens: True: expected a whole number, at least 1"),
        (lambda model: model.generate("a", 2, logprobs=True), "logprobs: True: expected a number of tokens, from 0 on"),
        (lambda model: model.generate("a", 2, draft="x"), "draft: 'x': expected a model, as linnet.load reads it"),
        (lambda model: model.generate("a", 2, draft="x", parse_special=True), "draft: 'x': expected a model, as"),
        (
            lambda model: model.generate("a", 10**15, draft=model),
            "max_tokens: no memory for the state of 1000000000000002",
        ),
        (lambda model: model.generate("a", 2, choices=5), "choices: 5: expected a list of texts that are not empty"),
        (lambda model: model.generate("a", 2, choices={"a": 1}), "choices: {'a': 1}: expected a list of texts"),
        (lambda model: model.stream(5, 2, Sampling()), "prompt: 5: expected a list of token ids"),
        (lambda model: model.stream(["a"], 2, Sampling()), "prompt: token id 'a': expected 0 to 256"),
        (lambda model: model.stream([10**30], 2, Sampling()), "prompt: token id 1000000000000000000000000000000: "),
        (lambda model: model.stream([], 2, Sampling()), "prompt: empty; expected at least one token"),
        (lambda model: model.stream("a", 2, None), "sampling: None: expected a Sampling"),
        (lambda model: model.stream("a", 2, Sampling(), stop=5), "stop: (5,): expected texts that are not empty"),
        (lambda model: model.stream("a", 2, Sampling(), constraint=5), "constraint: 5: expected a Constraint"),
        (lambda model: model.completions(5, 2, Sampling()), "prompt: 5: expected a text, or a list of texts"),
        (
            lambda model: model.completions(["a"], 2, Sampling(), inputs=5),
            "input: 5: expected a text, or a list of texts",
        ),
        (lambda model: model.completions(["a"], 2, Sampling(), copies="x"), "copies: 'x': expected a whole number"),
        (lambda model: model.prompt_tokens(5), "prompt: 5: expected a text"),
        (lambda model: model.with_calibration("x", seed="y"), "seed: 'y': expected a whole number"),
        (lambda model: load(None), "folder: None: expected the path of a model folder"),
        (lambda model: decode(model.decoder, 5, 2, Sampling()), "prompt: 5: expected a list of lists of token ids"),
        (lambda model: decode(model.decoder, [1, 2], 2, Sampling()), "prompt: 1: expected a list of token ids"),
        (lambda model: decode(model.decoder, [[1]], 2, 0.8), "sampling: 0.8: expected a Sampling"),
        (lambda model: model.beam_search(5, 2), "prompt: 5: expected a text"),
        (lambda model: model.beam_search("a", "2"), "max_tokens: '2': expected a whole number, at least 1"),
        (lambda model: model.logits(["a"]), "text: ['a']: expected a text"),
        (lambda model: model.logits(None), "text: None: expected a text"),
        (lambda model: model.logprobs(["a", 5]), "text: 5: expected a text, or a list of texts"),
        (lambda model: model.logprobs("ab", top="x"), "top: 'x': expected a whole number, at least 0"),
        (lambda model: model.logprobs("ab", top=-1), "top: -1: expected at least 0"),
        (lambda model: model.embed(None), "text: None: expected a text, or a list of texts"),
    ],
)
def test_what_is_no_text_and_no_whole_number_is_named_in_one_line(
    call: Callable[[LanguageModel], object], message: str
):
    with pytest.raises(UserError) as refused:
        call(speaker())
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


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


def test_several_texts_of_a_prompt_are_those_of_their_seeds():
    model = speaker()
    alone = [model.generate("Once", 15, temperature=1.0, seed=5 + number) for number in range(4)]
    assert model.generate("Once", 15, temperature=1.0, seed=5, n=4) == alone
    assert len(set(alone)) == 4
    both = model.generate(["Once", "Hi"], 15, temperature=1.0, seed=5, n=2)
    assert both[:2] == alone[:2]
    assert both[2:] == [model.generate("Hi", 15, temperature=1.0, seed=7 + number) for number in range(2)]
    assert len(set(model.generate("Once", 15, temperature=1.0, n=3))) == 3
    for n in (0, 1.5, True, 10**7):
        with pytest.raises(UserError, match=r"^n: .*expected .*1 to 1,024$"):
            model.generate("Once", n=n)
    with pytest.raises(UserError, match="stream: True: expected one text, got n: 2"):
        model.generate("Once", n=2, stream=True)


@every_mixer
def test_the_prompt_of_several_texts_is_read_once(mixer: MixerSpec, monkeypatch: pytest.MonkeyPatch):
    model, settings = speaker(mixer), {"temperature": 1.0, "ignore_eos": True}
    seeds = {5: "Once", 6: "Once", 7: "Once", 8: "Hi", 9: "Hi", 10: "Hi"}
    alone = [model.generate(text, 3, seed=seed, **settings) for seed, text in seeds.items()]
    read, hidden = [], model.decoder.hidden

    def counting(tokens_BT: torch.Tensor, *given: object, **named: object) -> torch.Tensor:
        read.append(tuple(tokens_BT.shape))
        return hidden(tokens_BT, *given, **named)

    monkeypatch.setattr(model.decoder, "hidden", counting)
    assert model.generate(["Once", "Hi"], 3, seed=5, n=3, **settings) == alone
    assert read == [(2, 5), (6, 1), (6, 1)]


@pytest.mark.parametrize("preset", ["tiny-encoder-decoder", "tiny-prefix"])
@pytest.mark.parametrize("caches", [Caches(), Caches(kv=False)], ids=["state", "no state"])
def test_several_texts_behind_an_input_are_those_of_their_seeds(preset: str, caches: Caches):
    tokenizer = Tokenizer.train("bytes", [])
    spec = ModelSpec.load(preset).model_copy(update={"vocab_size": tokenizer.vocab_size})
    model = LanguageModel(Decoder(spec).double(), tokenizer)
    for text in ("a", "abc"):
        alone = [
            model.completions([""], 5, Sampling(1.0, seed=2 + number), inputs=[text])[0].text for number in range(3)
        ]
        found = model.completions([""], 5, Sampling(1.0, seed=2), caches=caches, inputs=[text], copies=3)
        assert [one.text for one in found] == alone
    texts = model.completions(["", ""], 5, Sampling(1.0, seed=2), caches=caches, inputs=["a", "abc"], copies=2)
    assert texts[0].text == model.completions([""], 5, Sampling(1.0, seed=2), inputs=["a"])[0].text
    assert texts[3].text == model.completions([""], 5, Sampling(1.0, seed=5), inputs=["abc"])[0].text


def test_log_probabilities_of_what_is_generated_are_those_of_the_text():
    model = speaker(extra_ids=3)
    completion = model.generate("Once", 15, temperature=2.0, seed=3, top_k=9, logprobs=2)
    assert str(completion) == completion.text == model.generate("Once", 15, temperature=2.0, seed=3, top_k=9)
    assert "".join(event.text for event in completion.events) == completion.text
    tokens = [model.tokenizer.end_id, *b"Once", *(event.token for event in completion.events)]
    log_TV = model.decoder(torch.tensor([tokens]))[0].detach().log_softmax(-1)
    for event, log_V in zip(completion.events, log_TV[4:], strict=False):
        assert event.logprob == pytest.approx(float(log_V[event.token]), abs=1e-5)
        own = log_V[: model.tokenizer.vocab_size].topk(2)
        assert [choice.token for choice in event.top] == own.indices.tolist()
        assert [choice.logprob for choice in event.top] == pytest.approx(own.values.tolist(), abs=1e-5)
    assert completion.finish_reason == ("length" if len(completion.events) == 15 else "stop")
    events = model.events("Once", 15, temperature=2.0, seed=3, top_k=9, logprobs=2)
    assert list(events) == completion.events
    assert all(event.logprob is None for event in model.events("Once", 3))
    (one, two) = model.generate(["Once", "Hi"], 5, logprobs=0, seed=1)
    assert not one.events[0].top and one.events[0].logprob is not None and two.text
    with pytest.raises(UserError, match=r"^logprobs: -1: expected a number of tokens, from 0 on"):
        model.generate("Once", logprobs=-1)


def test_log_probabilities_of_a_text_are_the_likelihood_of_its_tokens(monkeypatch: pytest.MonkeyPatch):
    model = speaker(extra_ids=3)
    monkeypatch.setattr("linnet.inference.scoring.LOGITS_AT_ONCE", 3 * 260)
    texts = ["Once upon é", "", "Hi"]
    found = model.logprobs(texts)
    for text, events in zip(texts, found, strict=True):
        tokens = [model.tokenizer.end_id, *text.encode()]
        assert "".join(event.text for event in events) == text
        assert [event.token for event in events] == tokens[1:]
        if text:
            hidden_BTD = model.decoder.hidden(torch.tensor([tokens[:-1]]))
            nats = model.decoder.each_loss(hidden_BTD, torch.tensor([tokens[1:]])).nats.sum()  # of `evaluate`
            assert sum(event.logprob for event in events) == pytest.approx(-float(nats), abs=1e-4)
    top = model.logprobs("Hi", top=2)
    assert [event.logprob for event in top] == pytest.approx([event.logprob for event in found[2]])
    assert all(event.top[0].logprob >= event.top[1].logprob for event in top)
    assert max(choice.token for event in model.logprobs("Hi", top=999) for choice in event.top) == 256


@pytest.mark.parametrize("mixer", CASES[:4])
def test_the_embedding_of_a_text_is_the_mean_of_its_hidden_states_whatever_the_batch(mixer: MixerSpec):
    model = speaker(mixer)
    texts = ["Once upon a time", "", "Hi", "é"]
    together_ND = model.embed(texts)
    assert together_ND.dtype == torch.float32
    for text, found_D in zip(texts, together_ND, strict=True):
        hidden_TD = model.decoder.hidden(torch.tensor([[model.tokenizer.end_id, *text.encode()]]))[0]
        expected_D = hidden_TD[1:].mean(0) if text else hidden_TD[0]
        torch.testing.assert_close(found_D, expected_D.float(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found_D, model.embed(text), rtol=1e-5, atol=1e-5)
    assert len(model.embed([])) == len(model.logprobs([])) == 0


def test_rows_of_many_lengths_are_read_in_several_passes(monkeypatch: pytest.MonkeyPatch):
    model = speaker()
    texts = ["a" * length for length in (3, 9, 1, 7, 30)]
    expected = model.embed(texts)
    monkeypatch.setattr("linnet.inference.scoring.TOKENS_AT_ONCE", 20)
    torch.testing.assert_close(model.embed(texts), expected, rtol=1e-5, atol=1e-5)


def test_texts_under_a_constraint():
    pytest.importorskip("llguidance")
    model = speaker()
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 22]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for seed in range(3):
        completion = model.generate("Once", 80, temperature=1.5, seed=seed, json_schema=schema, logprobs=0)
        if completion.finish_reason == "stop":
            assert json.loads(completion.text)["a"] in (1, 22)
    texts = model.generate(["Once", ""], 9, temperature=1.5, seed=1, n=3, choices=["red", "green"])
    assert set(texts) == {"red", "green"}
    assert texts[1] == model.generate("Once", 9, temperature=1.5, seed=2, choices=["red", "green"])
    for settings in ({"temperature": 0}, {"top_k": 1}, {"top_p": 0.0}):  # what the truncation leaves is not permitted
        for ignore_eos in (False, True):
            text = model.generate("Once", 9, regex="[xyz]{3}", ignore_eos=ignore_eos, **settings)
            assert re.fullmatch("[xyz]{3}", text)
    stream = model.generate("Once", 2, regex="[xyz]{3}", stream=True)
    assert len("".join(stream)) == 2
    assert stream.finish_reason == "length"
    stream = model.stream(
        "Once", 9, Sampling(), caches=Caches(kv=False), constraint=constraint_of(regex="[xyz]{3}"), logprobs=1
    )
    events = list(stream.events())
    assert len(events) == 3 and events[0].logprob is not None and stream.finish_reason == "stop"
    session = linnet.Session(model)
    session.feed("Once")
    assert session.generate(9, choices=["red"]) + session.generate(9, regex="a{2}", seed=1) == "redaa"
    with pytest.raises(UserError, match="regex and choices: expected one constraint"):
        model.generate("Once", regex="a", choices=["a"])


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
