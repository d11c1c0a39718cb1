"""Answers that the model of a run draws to its prompts, and what they earn: the batches of GRPO.

The answers of a step follow from the seed, the number of the rollout and the weights, so that a resumed run draws what
an uninterrupted one drew. Several updates (`updates`) read the same answers; those of a rollout that is not used up are
part of the checkpoint.

Legend: `B` answers, `T` places of a row.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnet.core.errors import UserError, is_out_of_memory
from linnet.core.system import Stopped
from linnet.data.loader import Batch, evenly_spaced
from linnet.data.token_data import TokenData
from linnet.model.decoder import Decoder
from linnet.model.example_loss import example_nats
from linnet.present.progress import Advance, progress
from linnet.training.callbacks.evaluation import Evaluate, HeldOutMeasure, HeldOutState
from linnet.training.checkpoint import checkpoint_steps
from linnet.training.drawn_answers import DrawnAnswer, PendingAnswer, draw
from linnet.training.lora import reference_decoder, trains_parts_alone, without_parts
from linnet.training.objective_figures import prompts_text
from linnet.training.objectives.grpo import ADVANTAGE, CUT, DRAWN, REFERENCE_NATS, REWARD, advantages
from linnet.training.rewards import Judgement, Rewards
from linnet.training.rollout_batches import Prompts, RolloutBatches, known_bounds, pass_rates
from linnet.training.spec import RunSpec
from linnet.training.step import StepResult

AGREEMENT = {torch.float32: 1e-3, torch.bfloat16: 0.2}
"""How far the log-probability of a token when it was drawn and in training may be apart, in nats, by precision."""

ANSWERS = 128
"""To held-out prompts that are drawn at a time; 512 in one batch take 0.8 of the time and three times the memory."""

STEPS_WITHOUT_SIGNAL = 10
"""In a row, in which no answer earned more than another of its group: a person is told that nothing is learned."""

_HELD_OUT = 1
"""In the seeds of answers to held-out prompts; those of a rollout have 0 there."""


@dataclass
class RolloutState(HeldOutState):
    """answers: of a rollout that further updates read, by the number of a batch, with `-log q` of their tokens. number:
    of the rollout.

    before, figures: of held-out prompts, before the first step and at `step`.
    """

    number: int | None = None
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    before: dict[str, Any] | None = None


class Rollouts(HeldOutMeasure):
    """Draws the answers of each rollout before the step that reads them first, and measures held-out prompts."""

    name = "rollouts"

    def __init__(
        self, run: RunSpec, data: TokenData, batches: RolloutBatches, evaluate: Evaluate, dtype: torch.dtype
    ) -> None:
        """dtype: of the products of the run. `UserError` for a reward that cannot be read."""
        super().__init__(evaluate)
        assert run.training.grpo is not None and run.start_from is not None
        self._spec, self.batches, self._dtype = run.training.grpo, batches, dtype
        self._held_out = Prompts(data, "validation", batches.context_length - self._spec.max_tokens)
        self._rewards, self._tokenizer = Rewards(self._spec), data.tokenizer
        for prompts in (batches.prompts, self._held_out):
            self._rewards.check(prompts.lines)
        self._reference: Decoder | None = None
        self._steps_without_signal = 0
        self.state: RolloutState = RolloutState()

    def on_load(self) -> None:
        context, state = self.context, self.state
        if not context.model.decoder.causal:
            problem = "its layers see later tokens while they calibrate"
            raise UserError(f"model: {context.run.model.name}: {problem}; expected a causal model for training.grpo")
        self._rewards.device = str(context.device)
        if context.state.step == 0 and (line := self._rewards.describe()):
            context.reporter.note(line)
        if self._spec.kl and self._reference is None and not trains_parts_alone(context.model.decoder):
            reference = reference_decoder(context.run, context.data)
            self._reference = reference.to(context.device).eval().requires_grad_(False)
        self.batches.current = {}
        for number, kept in state.answers.items():
            answers, drawn = [DrawnAnswer(**answer) for answer in kept["answers"]], torch.tensor(kept["drawn"]).double()
            self.batches.current[int(number)] = self._as_batch(answers, drawn)
        if context.state.step == 0 and state.before is None:
            try:
                state.before = self.measured()
            except Stopped:  # the next start measures them
                return
            context.reporter.note(f"held-out prompts before the first step: {prompts_text(state.before)}")

    def before_step(self) -> None:
        """Draw the answers that the next step is the first to read."""
        context = self.context
        rollout, update = divmod(context.state.data_position, self._spec.updates)
        if update and self.state.number == rollout:
            self._keep(context.state.data_position)
            return
        count = context.spec.gradient_accumulation
        first, current, stored = context.state.data_position * count, dict[int, Batch](), dict[str, dict[str, Any]]()
        for part in range(count):
            with self._explain_out_of_memory(f"in front of step {context.state.step + 1}", ("training.batch_size",)):
                answers = self._drawn(rollout * count + part)
                current[first + part] = batch = self._as_batch(answers)
            if self._spec.updates > 1:
                plain = {"answers": [vars(each) for each in answers], "drawn": batch.extras[DRAWN].tolist()}
                stored[str(first + part)] = plain
        self.batches.current, self.state.answers, self.state.number = current, stored, rollout

    def after_update(self, result: StepResult) -> None:
        """Tell of a usual failure: all answers to a prompt are right, or all are wrong."""
        self._steps_without_signal = 0 if result.example_terms["signal"] else self._steps_without_signal + 1
        if self._steps_without_signal == STEPS_WITHOUT_SIGNAL:
            steps = f"for {STEPS_WITHOUT_SIGNAL} steps all answers to each prompt earned the same"
            cure = "other prompts, a larger training.grpo.group, or training on answers (--chat) first may help"
            self.context.reporter.note(f"note: training.grpo: {steps}, so nothing is learned; {cure}")

    @contextmanager
    def _explain_out_of_memory(self, when: str, others: Sequence[str] = ()) -> Iterator[None]:
        """`UserError` where memory runs out while answers are drawn. others: fields besides those of `grpo`."""
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            saved = checkpoint_steps(self.context.folder.checkpoints)
            newest = f"step {saved[-1]}" if saved else "none yet"
            problem = f"out of memory while answers were drawn {when} (saved: {newest})"
            fields = " or ".join((*others, "training.grpo.max_tokens"))
            accepted = f"a smaller group, or a smaller {fields}"
            raise UserError(problem, field="training.grpo.group", value=self._spec.group, accepted=accepted) from None

    def _keep(self, position: int) -> None:
        """Give the batches of the rollout the numbers of the next step."""
        count = self.context.spec.gradient_accumulation
        kept = zip(range(position * count, (position + 1) * count), self.batches.current.values(), strict=True)
        self.batches.current = dict(kept)
        stored = zip(map(str, self.batches.current), self.state.answers.values(), strict=True)
        self.state.answers = dict(stored)

    def _drawn(self, number: int) -> list[DrawnAnswer]:
        """The answers to the prompts of batch `number` of rollouts, a group for each; every process draws its own."""
        processes, prompts = self.context.processes, self.batches.numbers(number)
        own = len(prompts) // processes.count
        mine = prompts[processes.rank * own : (processes.rank + 1) * own]
        first = number * len(prompts) + processes.rank * own
        seeds = [self._seed(0, first + place) for place in range(len(mine))]
        decoder = self.context.model.whole()
        answers = self._answers(decoder, self.batches.prompts, mine, seeds, self._spec.group)
        gathered = processes.gather([vars(answer) for answer in answers])
        everyone = processes.broadcast_from_rank0(lambda: [each for part in gathered for each in part])
        return [DrawnAnswer(**answer) for answer in everyone]

    def _seed(self, kind: int, number: int) -> int:
        drawn = np.random.SeedSequence([self.context.state.seed, kind, number]).generate_state(1, np.uint64)
        return int(drawn[0] >> np.uint64(2))

    @torch.no_grad()
    def _answers(
        self,
        decoder: Decoder,
        prompts: Prompts,
        numbers: Sequence[int],
        seeds: Sequence[int],
        group: int,
        advance: Advance = lambda *_: None,
    ) -> list[DrawnAnswer]:
        """`group` answers to each of some prompts, drawn from the model's own probabilities by the engine."""
        most = self._spec.max_tokens
        groups = [
            [PendingAnswer(prompts.lines[number], prompts.tokens[number], seed + place, most) for place in range(group)]
            for number, seed in zip(numbers, seeds, strict=True)
        ]
        draw(decoder, prompts, groups, self._tokenizer, advance)
        drawn = [each for alike in groups for each in alike]
        judged = self._rewards.of([each.line for each in drawn], [each.text for each in drawn])
        return [each.judged(judgement) for each, judgement in zip(drawn, judged, strict=True)]

    @torch.no_grad()
    def _as_batch(self, answers: list[DrawnAnswer], drawn_BT: Tensor | None = None) -> Batch:
        """The rows of answers. drawn_BT: `-log q` of their tokens; None: by the pass that training makes."""
        width = max(len(answer.tokens) for answer in answers) - 1
        tokens = torch.full((len(answers), width + 1), self._tokenizer.end_id, dtype=torch.int64)
        weights = torch.zeros((len(answers), width), dtype=torch.bool)
        for row, answer in enumerate(answers):
            tokens[row, : len(answer.tokens)] = torch.tensor(answer.tokens)
            weights[row, answer.prompt - 1 : len(answer.tokens) - 1] = True
            for first, last in answer.told:
                weights[row, first - 1 : last - 1] = False
        rewards_B = torch.tensor([answer.reward for answer in answers], dtype=torch.float64)
        extras = {REWARD: rewards_B, CUT: torch.tensor([float(answer.cut) for answer in answers])}
        extras[ADVANTAGE] = advantages(rewards_B, self._spec.group, self._spec.scale_by_std)
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        batch = Batch(inputs, targets, weights, extras=extras, rows_per_example=self._spec.group)
        if drawn_BT is None:
            drawn_BT = self._nats(self.context.model.whole(), batch)
            self._check(answers, drawn_BT)
        extras[DRAWN] = drawn_BT
        if self._spec.kl:
            extras[REFERENCE_NATS] = self._reference_nats(batch)
        return replace(batch, extras=extras)

    def _reference_nats(self, batch: Batch) -> Tensor:
        """`-log r` of each token that counts, `[B, T]`, by a second model, or this one without its low-rank parts."""
        if self._reference is not None:
            return self._nats(self._reference, batch)
        decoder = self.context.model.whole()
        with without_parts(decoder):
            return self._nats(decoder, batch)

    def _nats(self, decoder: Decoder, batch: Batch) -> Tensor:
        """`-log` of the probability of each token that counts, `[B, T]`, as the objective computes it."""
        found = torch.zeros(batch.tokens.shape, dtype=torch.float64, device=self.context.device)
        own = self.context.processes.shard_batch(batch)
        first = self.context.processes.rank * len(own)
        on_device = own.to(self.context.device)
        with torch.autocast(on_device.tokens.device.type, self._dtype, enabled=self._dtype != torch.float32):
            nats = example_nats(decoder, on_device.tokens, on_device.labels, document_starts=on_device.document_starts)
        found[first : first + len(own)] = nats.double()
        return self.context.processes.total(found).cpu()

    def _check(self, answers: list[DrawnAnswer], drawn_BT: Tensor) -> None:
        """`UserError` if the engine drew tokens from other probabilities than those of the training pass."""
        apart = 0.0
        for answer, drawn_T in zip(answers, drawn_BT, strict=True):
            known = {place: nats for place, nats in enumerate(answer.nats, answer.prompt - 1) if nats is not None}
            by_engine = torch.tensor(list(known.values()), dtype=torch.float64)
            by_pass = drawn_T[list(known)]
            apart = max(apart, float((by_pass - by_engine).abs().max()) if known else 0.0)
        if apart > AGREEMENT[self._dtype]:
            problem = f"tokens were drawn from probabilities that are {apart:.2g} nats from those of a training pass"
            raise UserError(f"training.grpo: {problem}; expected at most {AGREEMENT[self._dtype]:g}")

    def measured(self) -> dict[str, Any]:
        """pass@1 and pass@G of held-out prompts with intervals and `known_bounds`, and their mean reward.

        `Stopped` if a stop is requested meanwhile. Few prompts are answered at a time, whose states fit into memory.
        """
        context, processes, group = self.context, self.context.processes, self._spec.group
        chosen = evenly_spaced(len(self._held_out.tokens), self._spec.held_out)
        at_once = max(1, min(ANSWERS // group, -(-len(chosen) // processes.count)))
        portions = [chosen[first : first + at_once] for first in range(0, len(chosen), at_once)]
        judged, total = dict[int, list[Judgement]](), group * sum(map(len, portions[processes.rank :: processes.count]))
        with progress("answers to held-out prompts", total, shown=processes.is_rank0) as advance:
            for numbers in processes.share_work(context.stop, portions):
                seeds = [self._seed(_HELD_OUT, number) for number in numbers]
                with self._explain_out_of_memory("to held-out prompts"):
                    answers = self._answers(context.model.whole(), self._held_out, numbers, seeds, group, advance)
                for place, number in enumerate(numbers):
                    judged[number] = [each.judgement for each in answers[place * group : (place + 1) * group]]
        gathered = processes.gather(judged)
        bounds = known_bounds([self._held_out.lines[number] for number in chosen], group)

        def of_all() -> dict[str, Any]:
            rates = pass_rates([found for _, found in sorted(pair for part in gathered for pair in part.items())])
            return rates | (bounds if self._rewards.passes_by_checker else {})

        return processes.broadcast_from_rank0(of_all)

    def summary(self) -> dict[str, Any]:
        return {"rollouts": {"before": self.state.before, "after": self.latest}}
