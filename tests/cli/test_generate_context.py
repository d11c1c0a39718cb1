"""`linnet generate` with a context: the options reach the layers, and what the layers hold is told."""

import json

import pytest
import torch

from linnet.cli.main import main
from linnet.data.tokenizer import Tokenizer
from linnet.inference import FULL, BankCache, EvictionPolicy
from linnet.inference.cache_policy import CachePolicies, layer_sizes
from linnet.inference.language_model import load
from linnet.inference.sampling import Sampling
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model

TED, ATTENTION = {"kind": "ted"}, {"kind": "attention", "heads": 2}
DEFAULTS = {"top_k": 0, "threshold": 1e-8, "min_tokens_to_keep": 1}
GREEDY = ["--prompt", "Once upon a time", "--temperature", "0", "--max-tokens", "40"]


def folder(tmp_path_factory: pytest.TempPathFactory, mixers: list[dict]) -> str:
    """A random model over bytes that writes letters."""
    tokenizer = Tokenizer.train("bytes", [])
    blocks = [{"mixer": mixer, "feed_forward": {"kind": "glu", "hidden": 24}} for mixer in mixers]
    plain = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "context_length": 64, "blocks": blocks}
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse({**plain, "head": {"tied": False, "bias": True}}, "test"))
    torch.nn.init.normal_(decoder.embedding.tokens.weight)
    torch.nn.init.normal_(decoder.head.weight, std=0.5)
    letters = [tokenizer.encode(letter)[0] for letter in "abcdefghij klmnopqrst uvwxyz"]
    with torch.no_grad():
        decoder.head.bias.fill_(-1000.0)
        decoder.head.bias[letters] = 0.0
    path = tmp_path_factory.mktemp("models") / "model"
    write_model(path, decoder, tokenizer, {})
    return str(path)


@pytest.fixture(scope="module")
def ted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder(tmp_path_factory, [TED] * 3)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder(tmp_path_factory, [TED, ATTENTION, TED])


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder(tmp_path_factory, [ATTENTION])


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["generate", *arguments])
    return code, *capfd.readouterr()


def report(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict:
    code, out, err = run(capfd, *arguments, *GREEDY, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def settings(figures: dict) -> list[dict]:
    """What the report says of each layer, without the sizes."""
    return [{k: v for k, v in layer.items() if "size" not in k and k != "layer"} for layer in figures["context"]]


def policy(**changes: float) -> dict:
    return {"kind": "policy", **DEFAULTS, **changes}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [{"kind": "full"}] * 3),
        (["--context", "full"], [{"kind": "full"}] * 3),
        (["--context", "policy"], [policy()] * 3),
        (["--context", "bank"], [{"kind": "bank", "length": 64}] * 3),
        (["--context-top-k", "5"], [policy(top_k=5)] * 3),
        (["--context-top-k", "5,6,7"], [policy(top_k=5), policy(top_k=6), policy(top_k=7)]),
        (["--context-threshold", "-1"], [policy(threshold=-1.0)] * 3),
        (
            ["--context", "policy", "--context-threshold", "0.1,0.2,1e-3", "--context-min-tokens", "4"],
            [policy(threshold=value, min_tokens_to_keep=4) for value in (0.1, 0.2, 1e-3)],
        ),
        (
            ["--context-min-tokens", "1,2,3", "--context-top-k", "9"],
            [policy(top_k=9, min_tokens_to_keep=n) for n in (1, 2, 3)],
        ),
    ],
)
def test_the_options_reach_every_layer(ted: str, options: list[str], expected: list[dict], capfd):
    assert settings(report(capfd, ted, *options)) == expected


@pytest.mark.parametrize(
    ("options", "context"),
    [
        ([], FULL),
        (["--context-top-k", "4,8,200"], [EvictionPolicy(4), EvictionPolicy(8), EvictionPolicy(200)]),
        (["--context-threshold", "0.5", "--context-min-tokens", "3"], EvictionPolicy(0, 0.5, 3)),
        (["--context", "bank"], BankCache()),
    ],
)
def test_text_sizes_and_bytes_are_those_of_the_python_api(ted: str, options: list[str], context: CachePolicies, capfd):
    figures = report(capfd, ted, *options)
    stream = load(ted, "cpu").stream("Once upon a time", 40, Sampling(0.0), cache_policy=context)
    assert figures["text"] == "".join(stream)
    assert stream.state is not None
    sizes = layer_sizes(stream.state)
    found = [(layer["layer"], layer["size"], layer["average_size"]) for layer in figures["context"]]
    assert found == [(size.layer, size.size, size.mean_size) for size in sizes]
    assert all(0 < size.mean_size < 90 for size in sizes)
    # With everything kept there is room for the last token, which the state has not read.
    assert figures["state_bytes"] == stream.state.nbytes


def test_only_ted_layers_are_counted_and_listed(mixed: str, capfd):
    figures = report(capfd, mixed, "--context-top-k", "3,6")
    assert [(layer["layer"], layer["top_k"], layer["size"]) for layer in figures["context"]] == [(0, 3, 3), (2, 6, 6)]
    bank = report(capfd, mixed, "--context", "bank")
    assert [(layer["layer"], layer["kind"]) for layer in bank["context"]] == [(0, "bank"), (2, "bank")]
    assert bank["text"] == report(capfd, mixed)["text"]


def test_a_model_without_ted_layers_lists_none(attention: str, capfd):
    assert report(capfd, attention, "--context", "full")["context"] == []
    assert report(capfd, attention, "--no-kv-cache")["context"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--context", "bank", "--context-top-k", "3"],
            "--context bank --context-top-k 3: with bank nothing is evicted; expected --context policy",
        ),
        (
            ["--context", "full", "--context-threshold", "2"],
            "--context full --context-threshold 2: with full nothing is evicted; expected --context policy",
        ),
        (
            ["--context-top-k", "1,2"],
            "--context-top-k: 1,2: 2 numbers; expected a whole number, or 3, one for each ted",
        ),
        (["--context-threshold", "warm"], "--context-threshold: warm: expected a number, or 3, one for each ted layer"),
        (["--context-min-tokens", "1.5"], "--context-min-tokens: 1.5: expected a whole number"),
        (["--context-top-k", "1,,2"], "--context-top-k: 1,,2: expected a whole number"),
        (["--context-top-k", "-2"], "--context-top-k -2: top_k: -2: expected at least 0, which keeps all"),
        (["--context-threshold", "nan"], "--context-threshold nan: threshold: nan: expected a number"),
        (["--context", "some"], "Invalid value for '--context'"),
        (
            ["--context", "bank", "--no-kv-cache"],
            "--no-kv-cache: nothing is kept of the text; expected no --context bank",
        ),
        (
            ["--context-top-k", "1,2,3", "--show-context", "--no-kv-cache"],
            "--no-kv-cache: nothing is kept of the text; expected no --context-top-k 1,2,3 --show-context",
        ),
    ],
)
def test_a_context_that_cannot_be_is_one_line(ted: str, options: list[str], message: str, capfd):
    code, out, err = run(capfd, ted, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {message}")


@pytest.mark.parametrize("options", [["--context", "bank"], ["--context-top-k", "3"], ["--show-context"]])
def test_a_model_without_ted_layers_has_no_context_to_choose(attention: str, options: list[str], capfd):
    code, out, err = run(capfd, attention, *options)
    assert (code, out) == (2, "")
    assert err == f"error: {' '.join(options)}: the model has no ted layer; leave it out\n"


def test_the_help_tells_the_defaults_of_a_policy(capfd):
    _, out, _ = run(capfd, "--help")
    words, policy = " ".join(out.split()), EvictionPolicy()
    for option, default in (("top-k K", policy.top_k), ("threshold X", "1e-8"), ("min-tokens N", 1)):
        described = words.split(f"--context-{option}")[1].split("[default: ")[1]
        assert described.startswith(f"({default})]")
    assert (policy.threshold, policy.min_tokens_to_keep) == (1e-8, 1)


def test_without_a_terminal_the_table_comes_once_after_the_text(ted: str, capfd):
    options = [ted, *GREEDY, "--context-top-k", "4,8,16"]
    _, text, figures = run(capfd, *options)
    code, out, err = run(capfd, *options, "--show-context")
    heading, *rows, last = err.splitlines()
    assert (code, out) == (0, text)
    assert heading.split() == ["layer", "context", "size", "average", "size"]
    assert [row.split()[:3] for row in rows] == [["0", "policy", "4"], ["1", "policy", "8"], ["2", "policy", "16"]]
    assert last.startswith("40 tokens") and figures.count("\n") == 1


def test_the_average_is_over_every_token_of_prompt_and_text(ted: str, capfd):
    """56 tokens are read: the end token, 16 of the prompt, 39 of the text's 40."""
    _, _, err = run(capfd, ted, *GREEDY, "--show-context")
    assert err.splitlines()[1].split() == ["0", "full", "56", "28.50"]
    _, _, err = run(capfd, ted, *GREEDY, "--show-context", "--context-top-k", "2", "--context-threshold", "-1")
    assert err.splitlines()[1].split() == ["0", "policy", "2", f"{(1 + 55 * 2) / 56:.2f}"]


def test_json_with_the_table_is_still_json(ted: str, capfd):
    _, out, err = run(capfd, ted, *GREEDY, "--show-context", "--json")
    assert len(json.loads(out)["context"]) == err.count("full") == 3


def test_a_bank_begins_a_text_of_a_million_tokens_at_once(ted: str):
    """Nothing is reserved for tokens that are yet to come."""
    stream = load(ted, "cpu").stream("Once", 1_000_000, Sampling(0.0), cache_policy=BankCache())
    assert stream.state is not None
    before = stream.state.nbytes
    for _ in zip(range(50), stream, strict=False):
        pass
    assert stream.state.nbytes == before < 100_000
