"""`linnet generate` with a context: the options reach the layers, and what the layers hold is told."""

import json

import pytest
import torch

from linnet.cli.main import main
from linnet.data.tokenizer import Tokenizer
from linnet.inference.cache_policy import CachePolicies, layer_sizes
from linnet.inference.language_model import load
from linnet.inference.sampling import Sampling
from linnet.layers.cache_policy import FULL
from linnet.layers.mixers.ted import BankCache, EvictionCache
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model

TED, ATTENTION = {"kind": "ted"}, {"kind": "attention", "heads": 2}
DEFAULTS = {"top_k": 0, "threshold": -1.0, "min_tokens_to_keep": 1}
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
    return {"kind": "eviction", **DEFAULTS, **changes}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [{"kind": "full"}] * 3),
        (["--cache-policy", "full"], [{"kind": "full"}] * 3),
        (["--cache-policy", "eviction"], [policy(threshold=1e-8)] * 3),
        (["--cache-policy", "bank"], [{"kind": "bank", "length": 64}] * 3),
        (["--cache-policy", "top_k=5"], [policy(top_k=5)] * 3),
        (["--cache-policy", "top_k=5/top_k=6/top_k=7"], [policy(top_k=5), policy(top_k=6), policy(top_k=7)]),
        (["--cache-policy", "threshold=-1"], [policy(threshold=-1.0)] * 3),
        (
            ["--cache-policy", "/".join(f"threshold={x},min_tokens_to_keep=4" for x in ("0.1", "0.2", "1e-3"))],
            [policy(threshold=value, min_tokens_to_keep=4) for value in (0.1, 0.2, 1e-3)],
        ),
    ],
)
def test_the_options_reach_every_layer(ted: str, options: list[str], expected: list[dict], capfd):
    assert settings(report(capfd, ted, *options)) == expected


@pytest.mark.parametrize(
    ("options", "context"),
    [
        ([], FULL),
        (["--cache-policy", "top_k=4/top_k=8/top_k=200"], [EvictionCache(k, -1.0) for k in (4, 8, 200)]),
        (["--cache-policy", "threshold=0.5,min_tokens_to_keep=3"], EvictionCache(0, 0.5, 3)),
        (["--cache-policy", "bank"], BankCache()),
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
    figures = report(capfd, mixed, "--cache-policy", "top_k=3/top_k=6")
    assert [(layer["layer"], layer["top_k"], layer["size"]) for layer in figures["context"]] == [(0, 3, 3), (2, 6, 6)]
    bank = report(capfd, mixed, "--cache-policy", "bank")
    assert [(layer["layer"], layer["kind"]) for layer in bank["context"]] == [(0, "bank"), (2, "bank")]
    assert bank["text"] == report(capfd, mixed)["text"]


def test_a_model_without_ted_layers_lists_none(attention: str, capfd):
    assert report(capfd, attention, "--cache-policy", "full")["context"] == []
    assert report(capfd, attention, "--no-kv-cache")["context"] == []


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("bank,top_k=3", "expected full, recalibrate, bank, or top_k, threshold, min_tokens_to_keep, as in top_k=16,"),
        ("top_k=1/top_k=2", "2 policies; expected one, or 3, one for each layer that has a choice, between slashes"),
        ("threshold=warm", "threshold: 'warm': expected a number"),
        ("min_tokens_to_keep=1.5", "min_tokens_to_keep: '1.5': expected a whole number"),
        ("top_k=-2", "top_k: -2: expected at least 0, which keeps all"),
        ("threshold=nan", "threshold: nan: expected a number"),
        ("some", "expected full"),
    ],
)
def test_a_policy_that_cannot_be_is_one_line(ted: str, policy: str, message: str, capfd):
    code, out, err = run(capfd, ted, "--cache-policy", policy)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: --cache-policy {policy}: {message}")


def test_without_a_kv_cache_no_policy_has_an_effect(ted: str, capfd):
    for options, message in (
        (["--cache-policy", "bank"], "nothing is kept of the text, so a policy (bank) has no effect"),
        (["--show-context"], "nothing is kept of the text; expected no --show-context"),
    ):
        code, out, err = run(capfd, ted, "--no-kv-cache", *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"error: --no-kv-cache: {message}")


def test_a_model_whose_layers_have_one_policy_has_none_to_choose(attention: str, capfd):
    for option, *value in (["--cache-policy", "bank"], ["--show-context"]):
        code, out, err = run(capfd, attention, option, *value)
        message = f"{option}: no layer of the model (attention) has this option; options of its layers: none"
        assert (code, out, err) == (2, "", f"error: {message}\n")


def test_help_of_a_model_describes_the_policies_of_its_layers(mixed: str, capfd):
    code, out, _ = run(capfd, mixed, "--help")
    words = " ".join(out.split())
    assert code == 0 and f"Options of the layers of {mixed} (ted, attention): --cache-policy, --show-context" in words
    for name, policy in (("bank", BankCache), ("eviction or top_k=16,threshold=1e-4", EvictionCache)):
        assert f"{name}: {policy.__doc__.splitlines()[0]}" in words
    assert "--calibration" not in words


def test_without_a_terminal_the_table_comes_once_after_the_text(ted: str, capfd):
    options = [ted, *GREEDY, "--cache-policy", "top_k=4/top_k=8/top_k=16"]
    _, text, figures = run(capfd, *options)
    code, out, err = run(capfd, *options, "--show-context")
    heading, *rows, last = err.splitlines()
    assert (code, out) == (0, text)
    assert heading.split() == ["layer", "context", "size", "average", "size"]
    assert [row.split()[:3] for row in rows] == [
        ["0", "eviction", "4"],
        ["1", "eviction", "8"],
        ["2", "eviction", "16"],
    ]
    assert last.startswith("40 tokens") and figures.count("\n") == 1


def test_the_average_is_over_every_token_of_prompt_and_text(ted: str, capfd):
    """56 tokens are read: the end token, 16 of the prompt, 39 of the text's 40."""
    _, _, err = run(capfd, ted, *GREEDY, "--show-context")
    assert err.splitlines()[1].split() == ["0", "full", "56", "28.50"]
    _, _, err = run(capfd, ted, *GREEDY, "--show-context", "--cache-policy", "top_k=2")
    assert err.splitlines()[1].split() == ["0", "eviction", "2", f"{(1 + 55 * 2) / 56:.2f}"]


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
