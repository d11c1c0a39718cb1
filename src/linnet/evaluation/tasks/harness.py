"""A model as the LM Evaluation Harness (`lm_eval`) asks it: its tasks, its scores, no fork of it.

Its three questions are those of this room: how likely a text is behind another, how likely a whole text is, and what
the model says up to a stop.
"""

from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from linnet.core.errors import UserError
from linnet.evaluation.tasks.encoding import encode_pairs
from linnet.evaluation.tasks.generation import GenerationRequest, Generator
from linnet.evaluation.tasks.measure import streams_of
from linnet.evaluation.tasks.scorer import LoglikelihoodRequest, LoglikelihoodScorer
from linnet.inference.language_model import LanguageModel
from linnet.present.progress import progress


class HarnessModel(LM):  # type: ignore[misc]
    """`lm_eval`'s interface to a model; a document begins with the end token, as in training."""

    def __init__(self, model: LanguageModel, fork: bool = True) -> None:
        """`fork`: read a context that several requests share once."""
        super().__init__()
        self._tokenizer = model.tokenizer
        streams = streams_of(model)
        self._length, self._device = streams.context_length, model.decoder.device
        self._scorer, self._generator = LoglikelihoodScorer(streams, fork), Generator(streams, model.tokenizer)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Of each continuation behind its context in nats, and whether it is what greedy decoding gives."""
        pairs = [request.args for request in requests]
        scored = self._score(encode_pairs(self._tokenizer, pairs))
        for pair, answer in zip(pairs, scored, strict=True):
            self.cache_hook.add_partial("loglikelihood", pair, answer)
        return scored

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Of each text as a whole, each token predicted once, in windows of the model's context length."""
        texts = [request.args[0] for request in requests]
        windows = [self._windows(tokens) for tokens in self._tokenizer.encode_batch(texts)]
        scored = iter(self._score([window for of_text in windows for window in of_text]))
        sums = [sum(next(scored)[0] for _ in of_text) for of_text in windows]
        for text, answer in zip(texts, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), answer)
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What follows each context greedily, up to a stop, which is left out; `UserError` where sampling is asked."""
        contexts = self._tokenizer.encode_batch([request.args[0] for request in requests])
        asked = [self._asked(context, request.args[1]) for context, request in zip(contexts, requests, strict=True)]
        with progress("generating", len(asked), "texts") as advance:
            answers = self._generator.generate(asked, advance)
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers

    def _score(self, requests: Sequence[LoglikelihoodRequest]) -> list[tuple[float, bool]]:
        with progress("scoring", len(requests), "requests") as advance:
            return [(one.log_likelihood, one.greedy) for one in self._scorer.score(requests, advance)]

    def _windows(self, tokens: list[int]) -> list[LoglikelihoodRequest]:
        """The harness's own cut of a long text; the first window begins with the end token."""
        found = get_rolling_token_windows(tokens, self._tokenizer.end_id, self._length, context_len=1)
        return [LoglikelihoodRequest(tuple(before), tuple(after)) for before, after in map(make_disjoint_window, found)]

    def _asked(self, context: list[int], settings: dict[str, Any]) -> GenerationRequest:
        wanted: dict[str, Any] = dict(normalize_gen_kwargs(settings))
        if wanted["do_sample"]:
            raise UserError("generation_kwargs: do_sample: true: tasks are answered greedily; expected false")
        until = tuple(stop for stop in wanted["until"] if stop)
        return GenerationRequest((self._tokenizer.end_id, *context), until, wanted["max_gen_toks"])
