"""Prompts of a run that learns from rewards: the batches of their answers, and how many of these pass.

Legend: `G` answers of a group.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from linnet.core.errors import UserError
from linnet.data.chat_template import ChatTemplate
from linnet.data.loader import Batch, Batches
from linnet.data.prepare_conversations import SPECIAL_TOKENS
from linnet.data.prepare_prompts import rows_of
from linnet.data.prompts import ChatPrompt
from linnet.data.split import Split
from linnet.data.token_data import TokenData
from linnet.evaluation.statistics import mean
from linnet.training.objectives.grpo import ADVANTAGE, CUT, DRAWN, REFERENCE_NATS, REWARD
from linnet.training.rewards import Judgement
from linnet.training.spec import RunSpec


class RolloutBatches:
    """The batches of a run on prompts: numbers of prompts in a random order for each epoch, and the current answers."""

    counted_share = 1.0

    def __init__(self, data: TokenData, run: RunSpec) -> None:
        spec = run.training
        assert spec.grpo is not None and spec.context_length is not None, "an unresolved run"
        self.spec, self.batch_size, self.context_length = spec.grpo, spec.batch_size, spec.context_length
        spec.grpo.check_room(spec.context_length)
        self.prompts = Prompts(data, "train", spec.context_length - spec.grpo.max_tokens)
        rows = data.spans(data.split("train"), spec.context_length)
        self._order = Batches(data.split("train"), spec.batch_size, spec.context_length, spec.seed, rows)
        self._starts = {int(start): number for number, start in enumerate(rows.starts_N.tolist())}
        self.current: dict[int, Batch] = {}

    @property
    def tokens_per_batch(self) -> int:
        """Places of a batch at most."""
        return self.batch_size * self.spec.group * self.context_length

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """An estimate of the tokens of a group's prompts and of its answers."""
        prompt = sum(map(len, self.prompts.tokens)) / len(self.prompts.tokens)
        return self.spec.group * prompt, self.spec.group * self.spec.max_tokens / 2

    def numbers(self, number: int) -> list[int]:
        """The prompts of batch `number` of rollouts."""
        first = number * self.batch_size
        places = (divmod(each, self._order.examples_per_epoch) for each in range(first, first + self.batch_size))
        return [self._starts[int(self._order.epoch(epoch)[0][place])] for epoch, place in places]

    def batch(self, number: int) -> Batch:
        """Batch `number` of the run, whose answers have been drawn; else one of the same size, to measure a step."""
        if number in self.current:
            return self.current[number]
        rows = self.batch_size * self.spec.group
        tokens = torch.zeros((rows, min(self.context_length, 2 * self.spec.max_tokens)), dtype=torch.int64)
        zeros, nothing = torch.zeros(rows), torch.zeros(tokens.shape)
        extras = {ADVANTAGE: zeros, REWARD: zeros, CUT: zeros, DRAWN: nothing}
        extras |= {REFERENCE_NATS: nothing} if self.spec.kl else {}
        return Batch(tokens, tokens, nothing == 0, extras=extras, rows_per_example=self.spec.group)


class Prompts:
    """The prompts of a split: their tokens and their lines, and how those go on whose answers call tools."""

    def __init__(self, data: TokenData, side: Split, longest: int) -> None:
        """`UserError` for a prompt of more than `longest` tokens."""
        settings = data.manifest.settings
        self._template = ChatTemplate(settings["chat_template"], str(data.folder), settings.get(SPECIAL_TOKENS, {}))
        self._tokenizer = data.tokenizer.parsing_special()
        self.lines = rows_of(data, side)
        sequence = data.split(side)
        starts = sequence.document_starts.tolist()
        ends = [*starts[1:], len(sequence) - 1]
        self.tokens = [sequence.read(start, end - start).tolist() for start, end in zip(starts, ends, strict=True)]
        for line, tokens in zip(self.lines, self.tokens, strict=True):
            if len(tokens) > longest:
                accepted = f"at most {longest:,}, the context less training.grpo.max_tokens"
                remedy = "linnet prepare --long-conversations drop --max-tokens N leaves such prompts out"
                raise UserError(f"{line.place}: a prompt of {len(tokens):,} tokens; expected {accepted}; {remedy}")

    def told(self, line: ChatPrompt, further: ChatPrompt, stop: int) -> list[int] | None:
        """The tokens between the stop token of an answer that calls tools and the next answer: results, as printed.

        further: `line` with the answer and the results behind it. None if the template does not print this stop token
        behind the answer, so that the conversation would go on otherwise than the model wrote it.
        """
        before, behind = (
            self._template.render([turn.as_dict() for turn in each.messages], True, **each.variables)
            for each in (line, further)
        )
        name = self._tokenizer.token_name(stop)
        place = behind.find(name, len(before)) if behind.startswith(before) else -1
        return None if place < 0 else self._tokenizer.encode(behind[place + len(name) :])


def pass_rates(groups: Sequence[Sequence[Judgement]]) -> dict[str, Any]:
    """pass@1 and pass@G with 95 % intervals over prompts, and the mean reward, from `G` judged answers to each.

    pass@k is the probability that one of k answers passes, estimated without bias from all (Chen et al., arXiv
    2107.03374, equation 1). It is left out if nothing says of some answer whether it passes.
    """
    group = len(groups[0])
    found: dict[str, Any] = {"prompts": len(groups), "answers": group}
    if all(answer.passed is not None for each in groups for answer in each):
        passed = [sum(bool(answer.passed) for answer in each) for each in groups]
        one, any_of = mean([count / group for count in passed]), mean([float(count > 0) for count in passed])
        for name, estimate in (("pass@1", one), (f"pass@{group}", any_of)):
            interval = estimate.interval()
            within = None if interval is None else [min(1.0, max(0.0, bound)) for bound in interval]
            found[name] = {"value": estimate.value, "interval": within}
    reward = mean([float(np.mean([answer.reward for answer in each])) for each in groups])
    interval = reward.interval()
    return found | {"reward": reward.value, "reward_interval": None if interval is None else list(interval)}


def known_bounds(lines: Sequence[ChatPrompt], group: int) -> dict[str, Any]:
    """Between which pass rates a model can be: what guesses reach, and what reference answers do.

    `chance`: of pass@1 and pass@G, if each prompt says how likely a guess passes; `ceiling`: the share of the
    references that pass, if there are any.
    """
    chances_N, found = np.array([line.chance for line in lines]), dict[str, Any]()
    if (chances_N > 0).all():
        any_of = float((1 - (1 - chances_N) ** group).mean())
        found["chance"] = {"pass@1": float(chances_N.mean()), f"pass@{group}": any_of}
    passed = [each for each in (line.reference_passes for line in lines) if each is not None]
    return found | ({"ceiling": sum(passed) / len(passed)} if passed else {})
