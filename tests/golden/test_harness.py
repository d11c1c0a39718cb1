"""The LM Evaluation Harness gives our model the scores that its own HFLM gives Transformers' of the same weights."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from asked_by_harness import SENTENCES, harness_scores, question_task

from linnet.cli.main import main
from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.model.store import save_decoder

pytest.importorskip("lm_eval", reason="the extra tasks is not installed")
pytest.importorskip("accelerate", reason="HFLM needs it")

MEASURES = {"multiple_choice": ["acc", "acc_norm", "acc_bytes"], "loglikelihood_rolling": ["bits_per_byte"]}


@pytest.fixture(scope="module")
def models():
    from harness_models import both

    torch.manual_seed(0)
    tokenizer = Tokenizer.train("bpe", SENTENCES, 300)
    return both(tokenizer, width=32, layers=2, heads=4, context_length=64, dtype=torch.float64, spread=40)


def _task(folder: Path, output_type: str, **more: object) -> dict[str, object]:
    return question_task(folder, output_type, MEASURES.get(output_type, ["exact_match"]), **more)


def _scores(model: object, task: dict[str, object], shots: int = 0) -> tuple[dict[str, float], list[object]]:
    return harness_scores(model, {**task, "fewshot_split": "test", "num_fewshot": shots})


def _ours_and_theirs(models, task, shots=0, begins=True):
    from harness_models import hflm
    from linnet.evaluation.tasks.harness import HarnessModel

    model, theirs = models
    found = [_scores(HarnessModel(model, fork), task, shots) for fork in (True, False)]
    return [*found, _scores(hflm(theirs, model.tokenizer, batch=3, begins=begins), task, shots)]


@pytest.mark.parametrize("shots", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_multiple_choice(models, tmp_path, shots):
    """With one example before them some contexts are longer than the model's 64 tokens."""
    task = _task(tmp_path, "multiple_choice", doc_to_choice="{{choices}}", doc_to_target="gold")
    forked, paired, theirs = _ours_and_theirs(models, task, shots)
    assert forked[0] == paired[0] == theirs[0] and 0 < theirs[0]["acc,none"] < 1
    for answers in zip(forked[1], paired[1], theirs[1], strict=True):
        for ours, other, his in zip(*answers, strict=True):
            assert ours == pytest.approx(his, rel=1e-5) and other == pytest.approx(his, rel=1e-5)
            assert ours[1] == other[1] == his[1]


def test_rolling(models, tmp_path):
    """Texts of one window and of several. HFLM puts the end token before a whole text by itself, or twice."""
    task = _task(tmp_path, "loglikelihood_rolling", doc_to_text="", doc_to_target="{{(question + ' ') * (1 + gold)}}")
    forked, paired, theirs = _ours_and_theirs(models, task, begins=False)
    assert forked[0] == pytest.approx(theirs[0], rel=1e-5) and paired[0] == pytest.approx(theirs[0], rel=1e-5)


def test_generation(models, tmp_path):
    """Prompts that end in different tokens, since so random a model goes by the last."""
    settings = {"until": ["c", "`", "sA"], "max_gen_toks": 12, "do_sample": False}
    prompt = {"doc_to_text": "{{question[:9 + 3 * gold]}}", "doc_to_target": "{{choices[gold]}}"}
    task = _task(tmp_path, "generate_until", generation_kwargs=settings, **prompt)
    forked, _, theirs = _ours_and_theirs(models, task)
    assert forked == theirs
    lengths = {len(answer) for (answer,) in theirs[1]}
    assert len(lengths) > 3 and not any("c" in answer for (answer,) in theirs[1])


def test_sampling_is_refused(models, tmp_path):
    from linnet.evaluation.tasks.harness import HarnessModel

    settings = {"until": ["."], "do_sample": True, "temperature": 0.7}
    task = _task(tmp_path, "generate_until", doc_to_target="{{choices[gold]}}", generation_kwargs=settings)
    with pytest.raises(UserError, match="do_sample: true: tasks are answered greedily"):
        _scores(HarnessModel(models[0]), task)


@pytest.fixture
def few_tasks(monkeypatch):
    """Of the harness's own tasks those of one folder: it takes ten seconds to read the files of all."""
    from lm_eval.tasks import manager

    own, walk = Path(manager.__file__).parent, manager.TaskIndex._iter_yaml_files
    few = staticmethod(lambda root: walk(root / "arc" if root == own else root))
    monkeypatch.setattr(manager.TaskIndex, "_iter_yaml_files", few)


@pytest.mark.usefixtures("few_tasks")
def test_the_command(models, tmp_path, capfd, monkeypatch):
    model, _ = models
    save_decoder(model.decoder, tmp_path / "model")
    model.tokenizer.save(tmp_path / "model" / "tokenizer.json")
    task = _task(tmp_path, "multiple_choice", doc_to_choice="{{choices}}", doc_to_target="gold")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "own.yaml").write_text(yaml.safe_dump(task))
    monkeypatch.chdir(tmp_path)  # no repository
    arguments = ["evaluate", str(tmp_path / "model"), "--tasks", "own_multiple_choice"]
    limited = [*arguments, "--files", str(tmp_path / "tasks"), "--limit", "8"]
    assert main([*limited, "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == "", "no bars off a terminal, and nothing of programs that the harness starts"
    found = json.loads(out)["models"][0]
    assert found["items"] == {"own_multiple_choice": 8}
    assert 0 < found["tasks"]["own_multiple_choice"]["acc_stderr,none"] < 0.5
    twice = [*limited[:2], str(tmp_path / "model"), *limited[2:]]
    assert main(twice) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert f"{found['tasks']['own_multiple_choice']['acc_bytes,none']:.4f}" in said
    assert "not distinguishable from chance" in said and "no difference shown" in said
    score = found["scores"]["own_multiple_choice"]
    assert score["acc"] == found["tasks"]["own_multiple_choice"]["acc,none"] and score["chance"] == 0.25
    assert score["standard_error"] == pytest.approx(found["tasks"]["own_multiple_choice"]["acc_stderr,none"])
    assert score["baselines"] == {"longest": 0.25, "shortest": 0.25, "letter": 0.25}
    assert main(arguments) == 2
    assert "own_multiple_choice: did you mean" in capfd.readouterr().err.replace(
        "the harness has no such task", "did you mean"
    )
    assert main([*limited, "--task-file", "x"]) == 2
    assert "--task-file x: does not go with --tasks" in capfd.readouterr().err


def _folder_of(models, folder: Path, **tasks: dict[str, object]) -> list[str]:
    """A model and tasks in YAML, as arguments of the command without the names of the tasks."""
    model, _ = models
    save_decoder(model.decoder, folder / "model")
    model.tokenizer.save(folder / "model" / "tokenizer.json")
    (folder / "tasks").mkdir()
    for name, task in tasks.items():
        (folder / "tasks" / f"{name}.yaml").write_text(yaml.safe_dump({**task, "task": name}))
    return ["evaluate", str(folder / "model"), "--files", str(folder / "tasks"), "--tasks"]


def test_examples_from_the_split_that_is_asked_are_told(models, tmp_path, capsys, caplog):
    choice = _task(tmp_path, "multiple_choice", doc_to_choice="{{choices}}", doc_to_target="gold")
    arguments = _folder_of(models, tmp_path, plain=choice, apart={**choice, "fewshot_split": "test"})
    assert main([*arguments, "plain,apart", "--shots", "1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "plain: from split test, which is asked itself; apart: from split test." in out
    assert "NAME_train" not in out
    assert [line for line in caplog.messages if "can find its own answer" in line] == [
        "note: plain: examples from split test, which is asked itself: an item can find its own answer among them"
    ]


def test_what_does_not_fit_into_the_context_is_told(models, tmp_path, capsys):
    """The model reads 64 tokens."""
    choice = _task(
        tmp_path, "multiple_choice", doc_to_choice="{{choices[:3] + ['a bird ' * 99]}}", doc_to_target="gold"
    )
    text = _task(tmp_path, "generate_until", doc_to_target="{{choices[gold]}}")
    arguments = [*_folder_of(models, tmp_path, long=choice, said=text), "long,said", "--limit", "3", "--json"]
    assert main(arguments) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    assert found["items"] == {"long": 3, "said": 3}
    assert found["remarks"] == {
        "long": ["3 items with a choice longer than the context (64 tokens), read in windows"],
        "said": ["3 items answered with at most 32 tokens of 256 (max_gen_toks), because the model reads 64"],
    }


@pytest.mark.parametrize(
    ("changes", "shots", "problem"),
    [
        ({"fewshot_split": "test"}, 15, "ValueError: Sample larger than population"),
        ({"metric_list": [{"metric": "accuracies"}]}, 0, "accuracies not found"),
        ({"test_split": "exam"}, 0, "KeyError"),
        ({"doc_to_choice": "{{options}}"}, 0, "options"),
        ({"doc_to_target": "{{gold + 9}}"}, 0, ""),
        ({"doc_to_text": "{{question"}, 0, "TemplateSyntaxError"),
    ],
)
def test_what_the_harness_cannot_ask_is_one_line(models, tmp_path, capsys, changes, shots, problem):
    choice = _task(tmp_path, "multiple_choice", doc_to_choice="{{choices}}", doc_to_target="gold")
    arguments = [
        *_folder_of(models, tmp_path, good={**choice, "num_fewshot": 0}, bad={**choice, **changes}),
        "good,bad",
    ]
    assert main([*arguments, "--shots", str(shots)] if shots else arguments) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note:")]
    assert line.startswith("error: --tasks bad: the harness cannot ask it (") and problem in line


@pytest.mark.slow
def test_a_name_that_the_harness_does_not_know(models, tmp_path, capsys):
    """It reads all of its thousands of files to find out."""
    model, _ = models
    save_decoder(model.decoder, tmp_path / "model")
    model.tokenizer.save(tmp_path / "model" / "tokenizer.json")
    assert main(["evaluate", str(tmp_path / "model"), "--tasks", "arc_eazy"]) == 2
    assert "error: --tasks arc_eazy: did you mean arc_easy?" in capsys.readouterr().err
