"""`linnet generate`: where a text stops, what it must be, several texts, log-probabilities."""

import json
import re
from pathlib import Path

import pytest
import torch
from small_models import speaker

from linnet.cli.main import main
from linnet.inference.language_model import load
from linnet.model.decoder import Decoder
from linnet.model.store import save_decoder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model over bytes."""
    folder, model = tmp_path_factory.mktemp("models") / "small", speaker()
    save_decoder(model.decoder.float(), folder)
    model.tokenizer.save(folder / "tokenizer.json")
    return str(folder)


def run(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> tuple[int, str, str]:
    code = main(["generate", *arguments])
    out, err = capfdbinary.readouterr()
    return code, out.decode(), err.decode()


def test_a_stop_text_is_not_printed_and_nothing_behind_it(model: str, capfdbinary):
    options = [model, "--prompt", "Once", "--max-tokens", "40", "--seed", "1"]
    whole = run(capfdbinary, *options)[1].removesuffix("\n")
    text = whole.removeprefix("Once")
    stop = text[9:11]
    for more in ([], ["--no-stream"]):
        _, out, _ = run(capfdbinary, *options, "--stop", "nowhere in it", "--stop", stop, *more)
        assert out == "Once" + text.partition(stop)[0] + "\n"
    report = json.loads(run(capfdbinary, *options, "--stop", stop, "--json")[1])
    assert (report["text"], report["finish_reason"]) == (text.partition(stop)[0], "stop")
    assert json.loads(run(capfdbinary, *options, "--json")[1])["finish_reason"] == "length"


def test_a_text_is_what_the_constraint_says(model: str, capfdbinary, tmp_path: Path):
    pytest.importorskip("llguidance")
    options = [model, "--max-tokens", "60", "--seed", "2", "--no-stream"]
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    for given in (json.dumps(schema), str(tmp_path / "schema.json")):
        code, out, _ = run(capfdbinary, *options, "--json-schema", given)
        assert code == 0
        assert json.loads(out)["a"] in (1, 2)
    assert re.fullmatch("[a-c]{5}\n", run(capfdbinary, *options, "--regex", "[a-c]{5}")[1])
    assert run(capfdbinary, *options, "--choice", "red", "--choice", "green")[1] in ("red\n", "green\n")
    (tmp_path / "rules.lark").write_text('start: "x" | "(" start ")"')
    assert re.fullmatch(r"\(*x\)*\n", run(capfdbinary, *options, "--grammar", str(tmp_path / "rules.lark"))[1])
    saved = str(tmp_path / "state.safetensors")
    assert run(capfdbinary, *options, "--choice", "red", "--save-state", saved)[1] == "red\n"
    assert run(capfdbinary, *options, "--choice", "blue", "--load-state", saved)[1] == "blue\n"


def test_a_file_is_read_also_where_its_name_could_be_the_text(model: str, capfdbinary, tmp_path: Path):
    pytest.importorskip("llguidance")
    options = [model, "--max-tokens", "60", "--seed", "2", "--no-stream"]
    (tmp_path / "C:rules.lark").write_text('start: "x" | "(" start ")"')
    assert re.fullmatch(r"\(*x\)*\n", run(capfdbinary, *options, "--grammar", str(tmp_path / "C:rules.lark"))[1])
    (tmp_path / "{1}.json").write_text('{"enum": [12]}')
    assert run(capfdbinary, *options, "--json-schema", str(tmp_path / "{1}.json"))[1] == "12\n"
    spaces = " " * 5000  # more than a name has
    assert re.fullmatch(r"x\n", run(capfdbinary, *options, "--grammar", f'start: "x"{spaces}')[1])
    assert run(capfdbinary, *options, "--json-schema", f'{{"enum": [12]}}{spaces}')[1] == "12\n"
    code, _, err = run(capfdbinary, *options, "--grammar", str(tmp_path / "nowhere.lark"))
    assert code == 2 and "nowhere.lark: No such file or directory; expected a file, or the text itself" in err


def test_several_texts_are_those_of_their_seeds(model: str, capfdbinary):
    options = [model, "--prompt", "Once", "--max-tokens", "9"]
    alone = [run(capfdbinary, *options, "--seed", str(seed))[1] for seed in (4, 5, 6)]
    code, out, err = run(capfdbinary, *options, "--seed", "4", "--n", "3")
    assert (code, out, err) == (0, "\n".join(alone), "3 texts, 27 tokens\n")
    report = json.loads(run(capfdbinary, *options, "--seed", "4", "--n", "3", "--json", "--logprobs", "1")[1])
    assert [f"Once{text['text']}\n" for text in report["texts"]] == alone
    assert [text["seed"] for text in report["texts"]] == [4, 5, 6]
    assert [len(text["logprobs"]) for text in report["texts"]] == [9, 9, 9]


def test_log_probabilities_are_part_of_the_json(model: str, capfdbinary):
    options = [model, "--prompt", "Once", "--max-tokens", "9", "--seed", "4", "--json"]
    report = json.loads(run(capfdbinary, *options, "--logprobs", "2")[1])
    assert len(report["logprobs"]) == 9
    first = report["logprobs"][0]
    assert first["bytes"] == [first["token"]] and first["logprob"] < 0
    assert len(first["top"]) == 2 and first["top"][0]["logprob"] >= first["top"][1]["logprob"]
    assert "logprobs" not in json.loads(run(capfdbinary, *options)[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stop", ""], "--stop: empty; expected a text"),
        (["--choice", ""], "--choice: empty; expected a text"),
        (["--regex", "(a"], "--regex: unclosed group, at character 1 of the expression"),
        (["--regex", "a", "--choice", "b"], "regex and choices: expected one constraint"),
        (
            ["--json-schema", "nowhere.json"],
            "--json-schema nowhere.json: No such file or directory; expected a file, or",
        ),
        (["--json-schema", '{"type": "strng"}'], "--json-schema: Invalid type: strng"),
        (["--logprobs", "2"], "--logprobs 2: is part of what --json prints; add --json"),
        (["--length-penalty", "2"], "--length-penalty 2.0: is of a search for the best text; add --beams"),
        (["--early-stopping", "never"], "--early-stopping never: is of a search for the best text; add --beams"),
        (["--beams", "2", "--length-penalty", "1e3"], "--length-penalty 1000.0: expected a number within 100 of 0"),
        (["--n", "2", "--no-kv-cache"], "--n 2: --no-kv-cache is of one text; leave one of them out"),
        (["--n", "2", "--save-state", "x"], "--n 2: --save-state is of one text"),
        (["--n", "2", "--draft", "/nope"], "--n 2: --draft is of one text; leave one of them out"),
        (["--best-of", "2", "--draft", "/nope"], "--best-of 2: --draft is of one text; leave one of them out"),
        (["--n", "2", "--prompt-lookup", "-5"], "--n 2: --prompt-lookup is of one text; leave one of them out"),
    ],
)
def test_options_that_cannot_be_are_one_line(model: str, options: list[str], message: str, capfdbinary):
    code, out, err = run(capfdbinary, model, *options)
    assert (code, out) == (2, "")
    assert message in err, err
    assert err.count("\n") == 1


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A reward model over bytes with random weights."""
    folder, model = tmp_path_factory.mktemp("models") / "judge", speaker()
    decoder = Decoder(model.spec.replace(head={**model.spec.head.model_dump(), "value": True}))
    assert decoder.value is not None
    torch.nn.init.normal_(decoder.value, generator=torch.Generator().manual_seed(1))
    save_decoder(decoder.float(), folder)
    model.tokenizer.save(folder / "tokenizer.json")
    return str(folder)


def test_the_best_text_is_that_of_the_highest_score(model: str, judge: str, capfdbinary):
    options = ["--prompt", "Once", "--max-tokens", "8", "--seed", "3"]
    found = {}
    for name, more in (("mean log-probability", []), ("value", ["--reward", judge])):
        several = json.loads(run(capfdbinary, model, *options, "--n", "5", "--json")[1])["texts"]
        report = json.loads(run(capfdbinary, model, *options, "--best-of", "5", "--json", *more)[1])
        scores = [one.pop("score") for one in report["texts"]]
        assert report["score"] == name and scores == sorted(scores, reverse=True) and len(set(scores)) > 1
        assert sorted(report["texts"], key=lambda one: one["seed"]) == several
        code, out, err = run(capfdbinary, model, *options, "--best-of", "5", *more)
        best, found[name] = report["texts"][0], (report["texts"], scores)
        assert code == 0 and out == f"Once{best['text']}\n"
        assert f"the best of 5 texts, that of seed {best['seed']}: {name} {scores[0]:.3f}" in err
    texts, scores = found["value"]
    reward = load(judge, "cpu")
    for one, score in zip(texts, scores, strict=True):
        tokens = torch.tensor([reward.prompt_tokens(f"Once{one['text']}")])
        with torch.no_grad():
            assert float(reward.decoder.values(reward.decoder.hidden(tokens))[0, -1]) == pytest.approx(score, abs=1e-5)
    texts, scores = found["mean log-probability"]
    for one, score in zip(texts, scores, strict=True):
        scored = load(model, "cpu").logprobs(f"Once{one['text']}")[4:]
        if len(scored) == one["tokens"]:  # not where bytes of the text are no characters
            assert sum(each.logprob for each in scored) / len(scored) == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--best-of", "3", "--reward", "MODEL"], "gives texts no value; expected a reward model"),
        (["--reward", "MODEL"], "chooses among several texts; add --best-of"),
        (["--best-of", "3", "--n", "2"], "--json has all of them; leave out --n"),
        (["--best-of", "3", "--no-kv-cache"], "--best-of 3: --no-kv-cache is of one text; leave one of them out"),
        (["--best-of", "3", "--beams", "2"], "--beams 2: a search for the best text has no --best-of"),
        (["--best-of", "3", "--reward", "MODEL", "--input", "x"], "reads texts without an input; leave out --input"),
    ],
)
def test_what_has_no_best_text(options: list[str], expected: str, model: str, capfdbinary):
    code, _, err = run(capfdbinary, model, *[model if option == "MODEL" else option for option in options])
    assert code == 2 and expected in err
