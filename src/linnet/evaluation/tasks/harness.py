"""A model for the LM Evaluation Harness (`lm_eval`): its tasks and scores without changes to the package."""

from collections.abc import Sequence

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs

from linnet.core.errors import UserError
from linnet.evaluation.tasks.generation import GenerationRequest, Generator
from linnet.evaluation.tasks.scorer import LoglikelihoodRequest, LoglikelihoodScorer, StateFactory, encode_requests
from linnet.inference.language_model import LanguageModel
from linnet.present.progress import progress


class HarnessModel(LM):  # type: ignore[misc]
    """`lm_eval`'s interface to a model; a document begins with the end token, as in training."""

    def __init__(self, model: LanguageModel, fork: bool = True) -> None:
        """fork: read a context that several requests share once."""
        super().__init__()
        self._model, self._tokenizer, self._length = model, model.tokenizer, model.spec.context_length
        self._device = model.decoder.device
        states = StateFactory.of_model(model)
        self._remarked: dict[tuple[str, str], set[int | None]] = {}
        self._scorer, self._generator = LoglikelihoodScorer(states, fork), Generator(states, model.tokenizer)

    @property
    def tokenizer_name(self) -> str:
        """What the harness's cache of rendered requests is named after."""
        return str(self._tokenizer.hash)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The source of the model's chat template, which the harness records; `UserError` for the name of another."""
        if isinstance(chat_template, str):
            raise UserError(
                field="apply_chat_template", value=chat_template, accepted="True: the model has one template"
            )
        return self._model.chat_template.source if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a conversation; a model that is `parsing_special()` reads the control tokens in it as such."""
        return self._model.chat_template.render(chat_history, add_generation_prompt)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """For each continuation: its log-likelihood in nats after its context, and whether it is the greedy one."""
        pairs = [request.args for request in requests]
        encoded = encode_requests(self._tokenizer, pairs)
        for request, tokens in zip(requests, encoded, strict=True):
            if len(tokens.continuation) > self._length:
                self._count(request, f"with a choice longer than the context ({self._length} tokens), read in windows")
        scores = self._score(encoded)
        for pair, answer in zip(pairs, scores, strict=True):
            self.cache_hook.add_partial("loglikelihood", pair, answer)
        return scores

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each whole text; each token is predicted once, in windows of the context length."""
        texts, begin = [request.args[0] for request in requests], (self._tokenizer.end_id,)
        wholes = [LoglikelihoodRequest(begin, tuple(tokens)) for tokens in self._tokenizer.encode_batch(texts)]
        sums = [log_likelihood for log_likelihood, _ in self._score(wholes)]
        for text, answer in zip(texts, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), answer)
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The greedy text after each context up to a stop, which is left out; `UserError` for tasks that sample."""
        contexts = [self._tokenizer.encode_document(request.args[0]) for request in requests]
        prompts = []
        for context, request in zip(contexts, requests, strict=True):
            settings = dict(normalize_gen_kwargs(request.args[1]))
            if settings["do_sample"]:
                raise UserError("generation_kwargs: do_sample: true: tasks are answered greedily; expected false")
            until = tuple(stop for stop in settings["until"] if stop)
            asked = GenerationRequest(tuple(context), until, settings["max_gen_toks"])
            prompts.append(asked.within(self._length))
            if prompts[-1].max_tokens < asked.max_tokens:
                cut = f"answered with at most {prompts[-1].max_tokens} tokens of {asked.max_tokens} (max_gen_toks)"
                self._count(request, f"{cut}, because the model reads {self._length}")
        with progress("generating", len(prompts), "texts") as advance:
            answers = self._generator.generate(prompts, advance)
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers

    def _count(self, request: Instance, remark: str) -> None:
        self._remarked.setdefault((str(request.task_name), remark), set()).add(request.doc_id)

    def remarks(self) -> dict[str, list[str]]:
        """By task, what was read or answered in another way than the harness asked, with the number of items."""
        found: dict[str, list[str]] = {}
        for (task, remark), items in self._remarked.items():
            found.setdefault(task, []).append(f"{len(items)} items {remark}")
        return found

    def _score(self, requests: Sequence[LoglikelihoodRequest]) -> list[tuple[float, bool]]:
        with progress("scoring", len(requests), "requests") as advance:
            return [(one.log_likelihood, one.greedy) for one in self._scorer.score(requests, advance)]
