"""The page about models that were taught to answer: comparable models, and figures of those that are ready."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec

SCRIPT = Path(__file__).parents[2] / "experiments" / "answers.py"


@pytest.fixture(scope="module")
def answers() -> ModuleType:
    found = importlib.util.spec_from_file_location("answers", SCRIPT)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_mixer_has_about_as_many_parameters(answers: ModuleType):
    counts = {name: model_cost(ModelSpec.parse(answers.spec(name), name)).parameters for name in answers.MIXERS}
    assert max(counts.values()) / min(counts.values()) < 1.02, counts


def test_each_stage_starts_from_the_one_before(answers: ModuleType, tmp_path: Path):
    commands = list(answers.stages("PLDR", tmp_path, 5, 6))
    runs = [words[words.index("--out") + 1] for words in commands]
    assert [words[words.index("--from") + 1] for words in commands[1:]] == runs[:-1]
    assert ModelSpec.load(str(commands[0][3])).blocks[0].mixer.kind == "plga"


def test_the_page_has_the_models_that_are_ready(answers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def model(share: float, bits: float) -> dict[str, Any]:
        groups = {name: {"followed": share, "standard_error": 0.02} for name in ("questions", "all")}
        return {"groups": groups, "bits_per_byte": {"value": bits}}

    figures = {"models": [model(0.1 * stage, 1.25 + 0.01 * stage) for stage in range(4)]}
    (tmp_path / "TED-with-keys.json").write_text(json.dumps(figures))
    monkeypatch.setattr(answers, "transcripts", lambda names, out: f"said by {names}")
    monkeypatch.setattr(answers, "PAGE", tmp_path / "answers.md")
    answers.write_page(tmp_path)
    page = (tmp_path / "answers.md").read_text()
    assert (
        "| TED with keys | 0.0 ± 2.0 | 10.0 ± 2.0 | 20.0 ± 2.0 | 30.0 ± 2.0 | 1.250 / 1.260 / 1.270 / 1.280 |" in page
    )
    assert "| questions | 30 |" in page and "said by ['TED with keys']" in page
    assert "Not trained yet: attention, PLDR, RWKV-7, gated delta with attention." in page
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="no model has been through all stages"):
        answers.write_page(tmp_path / "empty")
