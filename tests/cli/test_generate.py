"""`linnet generate` as a user meets it: what it prints where, and with which exit code."""

import io
import json
import logging
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import torch

from linnet.cli.context_view import ContextView
from linnet.cli.main import main
from linnet.cli.text_options import SamplingOptions
from linnet.core.errors import LOG
from linnet.data.tokenizer import Tokenizer
from linnet.inference.beams import BeamSearch
from linnet.inference.language_model import LanguageModel, load
from linnet.inference.sampling import Sampling
from linnet.inference.weights import Precision
from linnet.layers.cache_policy import RecalibratingCache
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder, write_model

pytestmark = pytest.mark.usefixtures("warm_python")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model over bytes."""
    tokenizer = Tokenizer.train("bytes", [])
    block = {"repeat": 2, "mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 24}}
    description = {
        "vocab_size": tokenizer.vocab_size,
        "d_model": 16,
        "context_length": 64,
        "blocks": [block],
        "head": {"tied": False},
    }
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse(description, "test"))
    torch.nn.init.normal_(decoder.embedding.tokens.weight)
    torch.nn.init.normal_(decoder.head.weight, std=0.5)
    with torch.no_grad():
        decoder.head.weight[tokenizer.end_id] = 0
    folder = tmp_path_factory.mktemp("models") / "small"
    write_model(folder, decoder, tokenizer, {})
    return str(folder)


def run(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> tuple[int, str, str]:
    code = main(["generate", *arguments])
    out, err = capfdbinary.readouterr()
    return code, out.decode(), err.decode()


def process(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "import sys; from linnet.cli.main import main; sys.exit(main())", "generate"]
    return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_prompt_and_continuation_are_one_text_and_the_figures_one_line(model: str, capfdbinary):
    code, out, err = run(capfdbinary, model, "--prompt", "Once é", "--max-tokens", "20", "--seed", "1")
    assert code == 0
    assert out.startswith("Once é") and out.endswith("\n") and len(out) > 10
    assert err.count("\n") == 1
    assert "20 tokens, " in err and " tokens/s; prompt of 8 tokens in " in err and "state of " in err
    assert "weights of " in err
    assert run(capfdbinary, model, "--prompt", "", "--max-tokens", "1")[2].startswith("1 token; prompt of 1 token in ")


def test_streamed_or_not_the_text_of_a_seed_is_the_same(model: str, capfdbinary):
    streamed, whole, other = (
        run(capfdbinary, model, "--prompt", "Once", "--max-tokens", "30", *more)[1]
        for more in (["--seed", "1"], ["--seed", "1", "--no-stream"], ["--seed", "2"])
    )
    assert streamed == whole != other


def test_json_holds_text_and_figures(model: str, capfdbinary):
    options = [model, "--prompt", "Once", "--max-tokens", "30", "--seed", "1"]
    code, out, err = run(capfdbinary, *options, "--json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["prompt"] + report["text"] + "\n" == run(capfdbinary, *options)[1]
    assert (report["prompt_tokens"], report["tokens"], report["seed"]) == (5, 30, 1)
    assert report["tokens_per_second"] == pytest.approx(29 / report["seconds_decode"])
    assert report["seconds_prompt"] > 0
    assert report["state_bytes"] == 2 * 2 * 16 * 35 * 4


def test_the_seed_of_a_json_report_gives_the_same_text_again(model: str, capfdbinary):
    first = json.loads(run(capfdbinary, model, "--max-tokens", "30", "--json")[1])
    again = json.loads(run(capfdbinary, model, "--max-tokens", "30", "--json", "--seed", str(first["seed"]))[1])
    assert first["text"] == again["text"]
    assert first["prompt_tokens"] == 1


def test_temperature_zero_needs_no_seed(model: str, capfdbinary):
    greedy = [model, "--temperature", "0", "--max-tokens", "30", "--threads", "1", "--device", "cpu"]
    assert run(capfdbinary, *greedy)[1] == run(capfdbinary, *greedy)[1]


def test_weights_of_every_precision(model: str, capfdbinary):
    greedy = [model, "--prompt", "Once", "--temperature", "0", "--max-tokens", "30", "--json"]
    stored, *others = (
        json.loads(run(capfdbinary, *greedy, *more)[1])
        for more in ([], *(["--precision", weights] for weights in get_args(Precision)))
    )
    texts, sizes = ([report[name] for report in others] for name in ("text", "state_bytes"))
    assert texts[0] == stored["text"] and all(texts)
    size = stored["state_bytes"]
    assert sizes == [size, size // 2, size // 2, size // 2]
    decoder = load_decoder(Path(model))
    assert stored["weights_bytes"] == sum(parameter.nbytes for parameter in decoder.parameters())
    of_weights = [report["weights_bytes"] for report in others]
    assert of_weights[0] == stored["weights_bytes"] > max(of_weights[1:]) and len(set(of_weights)) == 4


def test_top_k_and_top_p_reach_the_choice(model: str, capfdbinary):
    greedy, one, nucleus = (
        run(capfdbinary, model, "--prompt", "Once", "--max-tokens", "30", *more)[1]
        for more in (["--temperature", "0"], ["--top-k", "1"], ["--top-p", "0"])
    )
    assert greedy == one == nucleus


def test_every_setting_of_the_choice_is_an_option_and_reaches_it(model: str, capfdbinary):
    assert {field.name for field in fields(SamplingOptions)} == {field.name for field in fields(Sampling)} - {"drawn"}
    options = [model, "--prompt", "Once", "--max-tokens", "30", "--seed", "1", "--temperature", "3"]
    plain = run(capfdbinary, *options)[1]
    for more in ("--min-p=0.9", "--typical-p=0.05", "--repetition-penalty=9", "--frequency-penalty=9"):
        assert run(capfdbinary, *options, more)[1] != plain, more
    assert run(capfdbinary, *options, "--presence-penalty", "-50")[1] != plain
    biased = run(capfdbinary, *options, "--logit-bias", "65=1000", "--logit-bias", "66=-3")[1]
    assert biased == "Once" + 30 * "A" + "\n"


def test_without_end_there_are_as_many_tokens_as_asked_for(model: str, capfdbinary):
    options = [model, "--temperature", "100", "--max-tokens", "1200", "--seed", "0", "--json"]
    ended, endless = (json.loads(run(capfdbinary, *options, *more)[1]) for more in ([], ["--ignore-eos"]))
    assert ended["tokens"] < 1200 == endless["tokens"]
    assert endless["text"].startswith(ended["text"].rstrip("\N{REPLACEMENT CHARACTER}"))
    assert (ended["ignore_eos"], endless["ignore_eos"]) == (False, True)


def test_a_text_beyond_the_context_is_noted(model: str, capfdbinary):
    code, _, err = run(capfdbinary, model, "--max-tokens", "80", "--seed", "0")
    assert code == 0
    assert "note: 81 tokens are more than the model's context length of 64 (context_length)" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "-1"], "--temperature -1.0: expected 0 (greedy) or"),
        (["--top-p", "1.5"], "--top-p 1.5: expected a probability"),
        (["--top-k", "-2"], "--top-k -2: expected"),
        (["--min-p", "-1"], "--min-p -1.0: expected a share from 0 to 1"),
        (["--repetition-penalty", "0"], "--repetition-penalty 0.0: expected a number from 0.001"),
        (["--logit-bias", "a=1"], "--logit-bias a=1: expected TOKEN=BIAS, a token id and a number"),
        (["--logit-bias", "999999=1"], "--logit-bias token id 999999: expected 0 to "),
        (["--seed", "-1"], "--seed -1: expected"),
        (["--max-tokens", "0"], "--max-tokens 0: expected at least 1"),
        (["--threads", "0"], "--threads 0: expected at least 1"),
        (["--threads", "999999"], "--threads 999999: expected at least 1 and, on "),
        (["--device", "abacus"], "--device 'abacus': expected auto, cpu"),
        (["--temperature", "hot"], "Invalid value for '--temperature'"),
        (
            ["--precision", "int2"],
            "Invalid value for '--precision': 'int2' is not one of 'float32', 'bfloat16', ",
        ),
    ],
)
def test_a_value_that_cannot_be_is_one_line(model: str, options: list[str], message: str, capfdbinary):
    code, out, err = run(capfdbinary, model, "--prompt", "Once", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ") and message in err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "no such folder"),
        (".", "neither a model folder nor a run"),
        ("tiny-ted", "a preset, a description without weights; `linnet train --model tiny-ted "),
    ],
)
def test_a_folder_that_is_no_model_is_one_line(name: str, message: str, tmp_path: Path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capfdbinary, name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"error: {name}: " in err and message in err


def test_general_help_shows_an_example_and_no_options_of_layers(capfdbinary):
    code, out, _ = run(capfdbinary, "--help")
    words = " ".join(out.split())
    assert code == 0
    assert "Example: linnet generate" in words
    assert "linnet generate MODEL --help" in words
    assert not any(option in words for option in ("--calibration", "--cache-policy", "--show-context"))


def test_help_of_a_model_shows_the_options_of_its_layers(pldr: str, model: str, capfdbinary):
    words = " ".join(run(capfdbinary, pldr, "--help")[1].split())
    assert "the layers calibrate on the whole prompt in one pass" in words
    assert "--cache-policy POLICY" in words and f"recalibrate: {RecalibratingCache.__doc__}" in words
    assert f"Options of the layers of {pldr} (plga): --calibration, --cache-policy" in words
    assert "--show-context" not in words and "bank" not in words
    code, out, _ = run(capfdbinary, "--help", model)
    assert code == 0
    assert f"Options of the layers of {model} (attention): none" in " ".join(out.split())
    assert "--calibration" not in out
    assert run(capfdbinary, "nowhere", "--help")[0] == 2


def given_to(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Bytes on the standard input, as a terminal of Latin-1 hands them on."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="latin-1"))


def encoder_decoder(folder: Path, positions: str) -> str:
    """With room for 16 learned positions, or trained on as many rotary ones."""
    mixer = {"kind": "attention", "heads": 2, "rotary": None if positions == "learned" else {}}
    block = {"repeat": 1, "mixer": mixer, "feed_forward": {"kind": "glu", "hidden": 8}}
    plain = {"name": "pairs", "vocab_size": 257, "d_model": 8, "context_length": 16}
    plain |= {"embedding": {"positions": positions}, "encoder": {"blocks": [block]}}
    spec = ModelSpec.parse({**plain, "blocks": [{**block, "cross_attention": {"heads": 2}}]}, "test")
    write_model(folder, Decoder(spec), Tokenizer.train("bytes", []), {})
    return str(folder)


def test_an_input_that_is_missing_or_too_long_for_an_encoder_is_one_line(tmp_path: Path, capfdbinary):
    learned = encoder_decoder(tmp_path / "learned", "learned")
    prompt = ["--prompt", "a", "--max-tokens", "3"]
    said = "error: --input: missing: the model has an encoder, which reads it; expected some text\n"
    assert run(capfdbinary, learned, *prompt) == (2, "", said)
    assert run(capfdbinary, learned, *prompt, "--input", "x" * 14)[0] == 0
    said = "error: --input: 17 tokens with the end tokens around it: the model's learned positions end at 16\n"
    assert run(capfdbinary, learned, *prompt, "--input", "x" * 15) == (2, "", said)


def test_an_input_longer_than_an_encoder_was_trained_on_is_noted(
    tmp_path: Path, capfdbinary, caplog: pytest.LogCaptureFixture
):
    model = encoder_decoder(tmp_path / "rotary", "none")
    assert run(capfdbinary, model, "--max-tokens", "3", "--input", "x" * 15)[0] == 0
    said = "note: 17 tokens of input are more than the model's context length of 16 (context_length)"
    assert caplog.messages == [said]


def test_standard_input_is_the_prompt_less_one_newline(model: str, monkeypatch: pytest.MonkeyPatch, capfdbinary):
    given_to(monkeypatch, "Zwei é\n\n".encode())
    code, out, _ = run(capfdbinary, model, "--prompt", "-", "--max-tokens", "5", "--json")
    assert code == 0
    assert json.loads(out)["prompt"] == "Zwei é\n"


def test_names_of_control_tokens_are_parsed_on_request(model: str, capfdbinary):
    counts = [
        json.loads(run(capfdbinary, model, "--prompt", prompt, "--max-tokens", "2", "--json", *more)[1])[
            "prompt_tokens"
        ]
        for prompt, more in (("<|end|>ab", []), ("<|end|>ab", ["--parse-special"]), ("ab<|end|>", ["--parse-special"]))
    ]
    assert counts == [10, 3, 4]


def test_standard_input_that_is_no_text_is_one_line(model: str, monkeypatch: pytest.MonkeyPatch, capfdbinary):
    given_to(monkeypatch, b"ab\xff")
    assert run(capfdbinary, model, "--prompt", "-") == (
        2,
        "",
        "error: --prompt -: the standard input is not UTF-8 text (byte 2)\n",
    )


def test_the_output_is_utf_8_on_every_terminal(model: str, monkeypatch: pytest.MonkeyPatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["generate", model, "--prompt", "é", "--max-tokens", "5", "--seed", "1"]) == 0
    assert terminal.buffer.getvalue().decode("utf-8").startswith("é")


def test_a_note_in_the_midst_of_the_text_comes_after_it(model: str, monkeypatch: pytest.MonkeyPatch):
    follow, terminal, before = ContextView.follow, io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), []

    def noting(view, continuation):
        for piece in follow(view, continuation):
            yield piece
            LOG.warning("note: compiled")

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            terminal.flush()
            before.append(terminal.buffer.getvalue())

    handler = Seen()
    LOG.addHandler(handler)
    monkeypatch.setattr(ContextView, "follow", noting)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["generate", model, "--prompt", "Once", "--max-tokens", "5", "--seed", "1"]) == 0
    LOG.removeHandler(handler)
    assert len(before) > 1 and all(text.startswith(b"Once") and text.endswith(b"\n") for text in before)


def test_an_interrupt_leaves_what_was_written(model: str):
    child = process(model, "--prompt", "Once", "--max-tokens", "100000", "--seed", "1")
    begun = child.stdout.read(20)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGINT
    assert begun.startswith(b"Once") and out.endswith(b"\n")
    lines = err.decode().splitlines()
    assert " tokens/s; " in lines[0] and lines[-1] == "interrupted"


def test_a_reader_that_leaves_is_no_error(model: str):
    child = process(model, "--prompt", "Once", "--max-tokens", "100000", "--seed", "1")
    child.stdout.read(20)
    child.stdout.close()
    assert child.wait(timeout=60) == 1
    assert child.stderr.read() == b""
    child.stderr.close()


@pytest.fixture(scope="module")
def pldr(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random PLDR-LLM over bytes."""
    tokenizer = Tokenizer.train("bytes", [])
    mixer = {"kind": "plga", "heads": 2, "metric_hidden": 6, "residual_units": 1}
    block = {"repeat": 2, "mixer": mixer, "norm": {"kind": "layer", "placement": "post"}}
    plain = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "context_length": 64, "blocks": [block]}
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse({**plain, "head": {"tied": False}}, "test"))
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    folder = tmp_path_factory.mktemp("models") / "pldr"
    write_model(folder, decoder, tokenizer, {})
    return str(folder)


def generated(capfdbinary, *arguments: str, temperature: str = "0") -> dict:
    settings = ["--json", "--temperature", temperature, "--max-tokens", "8", "--seed", "3"]
    code, out, err = run(capfdbinary, *arguments, *settings)
    assert code == 0, err
    return json.loads(out)


def test_disabled_caches_change_the_bytes_of_the_state(pldr: str, capfdbinary):
    both = generated(capfdbinary, pldr, "--prompt", "Once")
    no_g = generated(capfdbinary, pldr, "--prompt", "Once", "--cache-policy", "recalibrate")
    no_kv = generated(capfdbinary, pldr, "--prompt", "Once", "--no-kv-cache")
    neither = generated(capfdbinary, pldr, "--prompt", "Once", "--no-kv-cache", "--cache-policy", "recalibrate")
    assert both["text"] == no_g["text"] == no_kv["text"]
    operators = 2 * 2 * 8 * 8 * 4
    assert (no_kv["state_bytes"], neither["state_bytes"]) == (operators, 0)
    assert both["state_bytes"] == no_g["state_bytes"] == operators + (5 + 8) * 2 * 2 * 16 * 4


def test_other_operators_stand_in_the_place_of_the_models(pldr: str, capfdbinary):
    def text(*arguments: str) -> str:
        return generated(capfdbinary, pldr, "--prompt", "Once", *arguments, temperature="1")["text"]

    random = text("--calibration", "random")
    assert len({text(), random, text("--calibration", "identity")}) == 3
    assert random == text("--calibration", "random")
    assert text("--calibration", "random", "--precision", "int8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--calibration", "zero"], "--calibration: zero: expected identity, random, or a file of operators"),
        (["--calibration", "no.npz"], "--calibration: no.npz: no such file; expected operators as"),
        (
            ["--calibration", "identity", "--cache-policy", "recalibrate"],
            "--cache-policy recalibrate: no layer of the model (plga) has it",
        ),
    ],
)
def test_a_wrong_operator_or_cache_is_one_line(pldr: str, capfdbinary, arguments: list[str], message: str):
    code, out, err = run(capfdbinary, pldr, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {message}")


def test_a_model_without_operators_has_none_to_change(model: str, capfdbinary):
    for arguments, message in (
        (["--calibration", "identity"], "--calibration: no layer of the model (attention) has this option; options of"),
        (["--cache-policy", "recalibrate"], "--cache-policy: no layer of the model (attention) has this option"),
    ):
        code, _, err = run(capfdbinary, model, *arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err


@pytest.mark.parametrize("choice", [["--temperature", "0"], ["--temperature", "1", "--seed", "5"]])
def test_a_saved_stream_continues_exactly(model: str, tmp_path: Path, capfdbinary, choice):
    def said(*arguments: str) -> str:
        code, out, err = run(capfdbinary, model, *choice[:2], "--ignore-eos", *arguments)
        assert code == 0, err
        return out.removesuffix("\n")

    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    whole = said("--prompt", "Once", "--max-tokens", "24", *choice[2:], "--save-state", third)
    parts = [said("--prompt", "Once", "--max-tokens", "9", *choice[2:], "--save-state", first)]
    parts.append(said("--load-state", first, "--max-tokens", "6", "--save-state", second))
    parts.append(said("--load-state", second, "--max-tokens", "9", "--save-state", second))
    assert "".join(parts) == whole


def test_a_stream_continues_behind_another_prompt_and_reports_its_seed(model: str, tmp_path: Path, capfdbinary):
    path = str(tmp_path / "stream")
    code, out, err = run(capfdbinary, model, "--prompt", "On", "--seed", "7", "--max-tokens", "3", "--save-state", path)
    assert code == 0 and f"stream: {path}" in err
    code, out, _ = run(capfdbinary, model, "--load-state", path, "--prompt", "ce", "--max-tokens", "3", "--json")
    report = json.loads(out)
    assert (code, report["seed"], report["prompt"], report["prompt_tokens"]) == (0, 7, "ce", 3)
    code, _, err = run(capfdbinary, model, "--max-tokens", "3", "--save-state", path)
    assert code == 0 and f"replaced: {path}\nstream: {path}\n" in err


def test_a_stream_that_cannot_be_saved_or_continued_is_refused_in_one_line(model: str, tmp_path: Path, capfdbinary):
    path = tmp_path / "stream"
    assert run(capfdbinary, model, "--max-tokens", "2", "--save-state", str(path))[0] == 0
    for arguments, message in (
        (["--save-state", str(tmp_path)], f"--save-state {tmp_path}: is a folder"),
        (["--save-state", "s", "--no-kv-cache"], "--save-state s: a stream is its KV-cache"),
        (["--load-state", "nowhere"], "nowhere: no such file"),
        (["--load-state", str(path), "--cache-policy", "bank"], "--cache-policy bank: --load-state"),
    ):
        code, out, err = run(capfdbinary, model, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


def test_guesses_change_no_text_and_are_reported(model: str, capsys: pytest.CaptureFixture[str]):
    typed = ["generate", model, "--prompt", "abcabcabc", "--max-tokens", "30", "--temperature", "0", "--json"]
    reports = []
    for guesses in ([], ["--prompt-lookup", "5"], ["--draft", model]):
        assert main([*typed, *guesses]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert len({report["text"] for report in reports}) == 1
    assert reports[0]["speculation"] is None
    assert all({"proposed", "accepted", "gain"} <= report["speculation"].keys() for report in reports[1:])
    assert main([*typed[:-1], "--draft", model]) == 0
    assert "guesses: " in capsys.readouterr().err


def test_a_stream_that_is_saved_has_guesses_too(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    state, texts = str(tmp_path / "stream.safetensors"), []
    for guesses in ([], ["--prompt-lookup", "5"], ["--draft", model]):
        typed = ["generate", model, "--max-tokens", "20", "--json", *guesses]
        reports = []
        for more in (["--prompt", "abcabcabc", "--seed", "1", "--save-state", state], ["--load-state", state]):
            assert main([*typed, *more]) == 0
            reports.append(json.loads(capsys.readouterr().out))
        texts.append([report["text"] for report in reports])
        assert all((report["speculation"] is None) == (not guesses) for report in reports)
    assert len(texts[0]) == 2 and texts[0] == texts[1] == texts[2]


def test_beams_print_the_best_text_or_all(model: str, capsys: pytest.CaptureFixture[str]):
    typed = ["generate", model, "--prompt", "ab", "--max-tokens", "5", "--beams", "3"]
    assert main(typed) == 0
    best = capsys.readouterr().out
    assert main([*typed, "--json"]) == 0
    texts = json.loads(capsys.readouterr().out)["texts"]
    assert len(texts) == 3
    assert best == f"ab{texts[0]['text']}\n"
    for option, value in (("--seed", "1"), ("--top-k", "3"), ("--stop", "a"), ("--prompt-lookup", "3")):
        assert main([*typed, option, value]) == 2
        assert f"--beams 3: a search for the best text has no {option}" in capsys.readouterr().err
    assert main([*typed, "--no-kv-cache"]) == 2
    assert "--beams: it has no --no-kv-cache; leave one of them out" in capsys.readouterr().err


def test_a_search_of_an_encoder_decoder_has_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """In Python it is compared with Transformers' (tests/golden/test_transformers_beams.py)."""
    folder, asked = encoder_decoder(tmp_path / "pairs", "learned"), []
    model = load(folder)
    monkeypatch.setattr(
        "linnet.inference.language_model.BeamSearch", lambda *given: asked.append(given) or BeamSearch(*given)
    )
    typed = ["generate", folder, "--input", "ab", "--max-tokens", "9", "--beams", "3", "--json"]
    for penalty, name, stopping in ((2.0, "never", "never"), (-3.0, "true", True), (-3.0, "false", False)):
        assert main([*typed, "--length-penalty", str(penalty), "--early-stopping", name]) == 0
        texts = json.loads(capsys.readouterr().out)["texts"]
        own = model.beam_search("", 9, 3, input="ab", length_penalty=penalty, early_stopping=stopping)
        assert [(one["text"], one["score"]) for one in texts] == [(one.text, one.score) for one in own]
        assert asked[-2:] == [(3, penalty, stopping)] * 2
    assert main(typed) == 0
    assert asked[-1] == (3, 1.0, False)


def test_generate_prints_the_conversation_or_its_messages(model, capfd, monkeypatch):
    answers = iter(["calculator(12 * 3)", "calculator(36 + 1)", "That is 37."])
    monkeypatch.setattr(LanguageModel, "stream", lambda *_, **__: iter([next(answers)]))
    words = ["generate", model, "--prompt", "How many?", "--tools", "calculator", "--max-tokens", "30"]
    assert main([*words, "--tool-rounds", "1", "--seed", "7"]) == 0
    assert capfd.readouterr().out == "calculator(12 * 3)\n[calculator] 36\ncalculator(36 + 1)\n"
    assert main([*words, "--json", "--seed", "7"]) == 0
    messages = json.loads(capfd.readouterr().out)["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    for option in (["--n", "2"], ["--stop", "a"], ["--ignore-eos"], ["--prompt-lookup", "4"]):
        assert main([*words, *option]) == 2
        assert "a conversation has no such option" in capfd.readouterr().err
    assert main([*words[:4], "--tool-rounds", "2"]) == 2
    assert "--tool-rounds 2: expected --tools beside it" in capfd.readouterr().err
