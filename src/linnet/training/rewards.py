"""What the answers of a run on prompts earn: by a checker, a function of the user's, or a reward model."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from linnet.core.errors import UserError, one_line
from linnet.core.files import run_python_file
from linnet.data.prompts import ChatPrompt
from linnet.inference.language_model import LanguageModel, load
from linnet.model.folder import CONFIG, find_model_folder, weights_file
from linnet.model.spec import ModelSpec
from linnet.training.sections import GrpoSpec, reward_function

ACCEPTED = "FILE.py:FUNCTION, called as FUNCTION(row, answer) -> float, or the folder of a reward model"


RewardFunction = Callable[[dict[str, Any], str], float]
"""From the line of a prompt and the text of an answer to what it earns."""


class Judgement(NamedTuple):
    """What an answer earned, and whether it passes; None where nothing says so."""

    reward: float
    passed: bool | None


class Rewards:
    """What answers earn.

    By the checker of each prompt, which an answer passes with a score of 1; by a function, which it passes with a
    reward of at least 1; or by a reward model, to whose value `checker_weight` times the score of the checker is added,
    and which leaves it to the checker whether an answer passes.
    """

    def __init__(self, spec: GrpoSpec) -> None:
        """`UserError` for a reward that cannot be read."""
        self._named, self._checker_weight, self.device = spec.reward, spec.checker_weight, "auto"
        named = reward_function(spec.reward)
        self._function = None if named is None else _function_of(spec.reward, *named)
        self._folder = None if spec.reward is None or self._function is not None else _reward_folder(spec.reward)
        self.needs_checker = spec.needs_checker

    @property
    def passes_by_checker(self) -> bool:
        """Whether the checkers of prompts say which answers pass, and not a function of the user's."""
        return self._function is None

    def check(self, lines: Sequence[ChatPrompt]) -> None:
        """`UserError` for a prompt without the checker that its answers need."""
        for line in lines:
            if self.needs_checker:
                line.judged()

    def of(self, lines: Sequence[ChatPrompt], answers: Sequence[str]) -> list[Judgement]:
        """The judgement of each answer to the prompt beside it."""
        if self._folder is not None:
            return self._by_model(lines, answers)
        if self._function is not None:
            found = [self._by_function(line, answer) for line, answer in zip(lines, answers, strict=True)]
        else:
            found = [line.judged().score(answer) for line, answer in zip(lines, answers, strict=True)]
        return [Judgement(reward, reward >= 1) for reward in found]

    def _by_function(self, line: ChatPrompt, answer: str) -> float:
        """What the user's function returns; `UserError` where it fails, or returns no finite number."""
        assert self._function is not None
        try:
            returned = self._function(dict(line.row), answer)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            problem = f"it failed for the prompt of {line.place}: {type(error).__name__}: {one_line(str(error))}"
            raise UserError(problem, field="training.grpo.reward", value=self._named) from error
        try:
            reward = math.nan if isinstance(returned, str) else float(returned)
        except (Exception, SystemExit):  # nothing that is a number
            reward = math.nan
        if not math.isfinite(reward):
            problem = f"it returned {one_line(repr(returned))[:60]} for the prompt of {line.place}"
            raise UserError(problem, field="training.grpo.reward", value=self._named, accepted="a finite number")
        return reward

    def _by_model(self, lines: Sequence[ChatPrompt], answers: Sequence[str]) -> list[Judgement]:
        pairs = list(zip(lines, answers, strict=True))
        template, texts = self._model.chat_template, list[str]()
        for line, answer in pairs:
            asked = template.render([turn.as_dict() for turn in line.messages], True, **line.variables)
            texts.append(asked + answer)
        found = []
        for (line, answer), value in zip(pairs, self._model.values(texts), strict=True):
            score = None if line.checker is None else line.checker.score(answer)
            passed = None if score is None else score >= 1
            found.append(Judgement(value + self._checker_weight * (score or 0.0), passed))
        return found

    @cached_property
    def _model(self) -> LanguageModel:
        return load(str(self._folder), self.device).parsing_special()

    def describe(self) -> str | None:
        """The reward model in a line; None without one."""
        if self._folder is None:
            return None
        beside = f", with {self._checker_weight:g} times the score of the checker" if self._checker_weight else ""
        return f"training.grpo.reward: answers earn the value that the reward model {self._named} gives them{beside}"


def reward_file(named: str | None) -> Path | None:
    """The file that determines a reward: the Python file, or the weights of the model; None for checkers."""
    if named is None:
        return None
    if (function := reward_function(named)) is not None:
        return function[0]
    folder = find_model_folder(Path(named))
    return None if folder is None else weights_file(folder)


def _reward_folder(named: str) -> Path:
    """The folder of a reward model; `UserError` where there is none, or a model of another kind."""
    folder = find_model_folder(Path(named))
    if folder is None:
        problem = "no such model folder"
        raise UserError(problem, field="training.grpo.reward", value=named, accepted=ACCEPTED)
    if not ModelSpec.load(folder / CONFIG).head.value:
        problem = "a model that gives texts no value"
        accepted = "a reward model (training.preference.kind: reward)"
        raise UserError(problem, field="training.grpo.reward", value=named, accepted=accepted)
    return folder


def _function_of(named: str | None, path: Path, name: str) -> RewardFunction:
    """The function of a file; `UserError` if the file or the function is missing."""
    if not path.is_file():
        problem = f"{path}: a folder" if path.is_dir() else f"{path}: no such file"
        raise UserError(problem, field="training.grpo.reward", value=named, accepted=ACCEPTED)
    defined = run_python_file(path, "training.grpo.reward")
    function = defined.get(name)
    if not callable(function):
        problem = f"{path} has no function {name}" if function is None else f"{name} of {path} is no function"
        raise UserError(problem, field="training.grpo.reward", value=named, accepted=ACCEPTED)
    found: RewardFunction = function
    return found
