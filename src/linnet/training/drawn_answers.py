"""Answers that a model draws to prompts, whose calls of tools are run, so that it goes on with the results.

An answer of several parts is one row of tokens: the prompt, what was drawn, the stop token, what the tools told in the
form of the chat template, what was drawn then, and so on. Told tokens are read and not learned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from linnet.data.prompts import ChatPrompt
from linnet.data.tokenizer import Tokenizer
from linnet.inference.engine import Engine
from linnet.inference.sampling import Sampling
from linnet.inference.streams import Request, Stream
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.present.progress import Advance
from linnet.training.rewards import Judgement
from linnet.training.rollout_batches import Prompts

_SEED_STEP, _SEEDS = 0x9E3779B97F4A7C15, 1 << 62
"""Between the seeds of the parts of an answer, and the number of seeds."""


@dataclass(frozen=True)
class DrawnAnswer:
    """One drawn answer.

    tokens: of prompt and answer, with the stop token at the end; prompt: how many are the prompt's. nats: `-log q` of
    the tokens behind the prompt as the engine has it; None for a stop token and for what tools told, a last stop token
    is left out. cut: the answer reached the longest length. passed: whether it does; None where nothing says so. told:
    the first place in `tokens` of what tools told, and that behind the last, for each of their messages.
    """

    tokens: list[int]
    prompt: int
    nats: list[float | None]
    reward: float
    cut: bool
    passed: bool | None = None
    told: list[list[int]] = field(default_factory=list)

    @property
    def judgement(self) -> Judgement:
        """What it earned, and whether it passes."""
        return Judgement(self.reward, self.passed)


@dataclass
class PendingAnswer:
    """An answer that is being drawn.

    line: the prompt, with the calls and results so far. most: tokens behind the prompt. text: of the latest part.
    """

    line: ChatPrompt
    tokens: list[int]
    seed: int
    most: int
    prompt: int = field(init=False)
    nats: list[float | None] = field(default_factory=list)
    told: list[list[int]] = field(default_factory=list)
    text: str = ""
    cut: bool = False

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)

    @property
    def room(self) -> int:
        """How many tokens may still be drawn."""
        return self.most - (len(self.tokens) - self.prompt)

    def request(self, tokenizer: Tokenizer) -> Request:
        """What the engine is asked for: the next part, from the model's own probabilities."""
        seed = (self.seed + _SEED_STEP * len(self.told)) % _SEEDS
        sampling, stops = Sampling(temperature=1.0, seed=seed), tokenizer.end_ids
        return Request(tuple(self.tokens), self.room, sampling, stop_ids=stops, logprobs=0, keep_state=False)

    def goes_on(self, stream: Stream, prompts: Prompts, tokenizer: Tokenizer) -> bool:
        """Take the part that a stream drew, and run its calls; True if there is room to go on behind the results."""
        events = list(stream)
        self.tokens = [*self.tokens, *(event.token for event in events)]
        self.nats += [None if event.logprob is None else -event.logprob for event in events]
        self.text, self.cut = tokenizer.decode([event.token for event in events]), stream.finish_reason != "stop"
        if self.cut:
            return False
        stop = stream.pending[-1]
        self.tokens.append(stop)
        further = self.line.continued(self.text)
        told = None if further is None else prompts.told(self.line, further, stop)
        if further is None or told is None:
            return False
        if self.room <= len(told):
            self.cut = True
            return False
        self.told.append([len(self.tokens), len(self.tokens) + len(told)])
        self.nats += [None] * (1 + len(told))
        self.tokens, self.line = [*self.tokens, *told], further
        return True

    def judged(self, judgement: Judgement) -> DrawnAnswer:
        """The answer with what it earned."""
        reward, passed = judgement
        return DrawnAnswer(self.tokens, self.prompt, self.nats, reward, self.cut, passed, self.told)


def draw(
    decoder: Decoder,
    prompts: Prompts,
    groups: Sequence[Sequence[PendingAnswer]],
    tokenizer: Tokenizer,
    advance: Advance = lambda *_: None,
) -> None:
    """Draw the answers of groups of one size, each to one prompt that is read once; all run in one batch.

    advance: gets the number of answers whose first part has ended.
    """
    if not groups:
        return
    largest = sum(map(len, groups))
    engine = Engine(decoder, vocab_size=tokenizer.vocab_size, max_batch=largest, chunk_tokens=None)

    def submitted(groups: Sequence[Sequence[PendingAnswer]]) -> list[tuple[PendingAnswer, Stream]]:
        answers, copies = [each for alike in groups for each in alike], len(groups[0])
        longest = max(len(each.tokens) for each in answers) + max(each.room for each in answers)
        requests = [each.request(tokenizer) for each in answers]
        # Collecting outputs makes every step an ordinary pass: other steps may hold earlier weights.
        state, record = decoder.initial_state(len(groups), longest), AuxiliaryOutputs()
        return list(zip(answers, engine.submit_together(requests, state, record=record, copies=copies), strict=True))

    waiting, is_first = submitted(groups), True
    while waiting:
        running = [stream for _, stream in waiting]
        while engine.step():
            going = [stream for stream in running if stream.finish_reason is None]
            if is_first:
                advance(len(running) - len(going))
            running = going
        further = [[each] for each, stream in waiting if each.goes_on(stream, prompts, tokenizer)]
        is_first, waiting = False, submitted(further) if further else []
