"""A decoder with its tokenizer: text in, text out, and the figures of a generation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from linnet.core.atomic import not_replaced
from linnet.core.bounds import MAX_INTEGER, MAX_TEXTS
from linnet.core.errors import UserError, check_kind, check_text, check_whole, note, texts_of
from linnet.core.system import resolve_device
from linnet.data.chat_template import ChatTemplate
from linnet.data.tokenizer import Tokenizer
from linnet.inference.beams import BeamSearch, EarlyStopping, ScoredText, beam_search
from linnet.inference.cache_policy import CachePolicies, cache_policy_state, layer_cache_policies
from linnet.inference.constrained import Constraint, Grammar, constraint_of
from linnet.inference.continuation import Completion, Continuation
from linnet.inference.decode import decode_streams
from linnet.inference.prefill import EMPTY, PrefillInputs, check_tokens, new_state, prefill_inputs
from linnet.inference.readers import CachedReader, Caches
from linnet.inference.request_checks import check_logprobs, check_memory_of_encoder
from linnet.inference.sampling import (
    GREEDY_SETTINGS,
    Sampling,
    SamplingSettings,
    TokenCounts,
    check_sampling,
    counts_of,
    fresh_seed,
    sampling_of,
    seeded,
)
from linnet.inference.scoring import last_values, mean_hidden, token_log_probabilities
from linnet.inference.speculative import DraftModel, Speculation, speculation_of
from linnet.inference.state import with_room
from linnet.inference.streams import Stream
from linnet.inference.text_events import TextEvent, TextEvents, stop_texts
from linnet.inference.weights import convert_weights
from linnet.layers.cache_policy import FULL, FullCache, RecalibratingCache
from linnet.model.calibration import with_calibration_from
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.folder import PUBLISHED, TOKENIZER, model_folder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState
from linnet.model.store import load_decoder
from linnet.present import numbers


class GenerateSettings(SamplingSettings, total=False):
    """The settings of `LanguageModel.generate`, without those that decide its type."""

    cache_policy: CachePolicies
    ignore_eos: bool
    input: str | list[str] | None
    stop: str | Sequence[str]
    parse_special: bool
    json_schema: Mapping[str, Any] | bool | str | None
    regex: str | None
    choices: Sequence[str] | None
    grammar: str | None
    draft: "LanguageModel | None"
    prompt_lookup: int
    beams: int | None
    length_penalty: float
    early_stopping: EarlyStopping


class StreamSettings(GenerateSettings, total=False):
    """The settings of one stream."""

    logprobs: int | None


class ContinuationSettings(TypedDict, total=False):
    """The settings of `LanguageModel.stream` and `completions`.

    caches: what is kept between tokens. constraint: what each text must be. The others: see `LanguageModel.generate`.
    """

    caches: Caches
    cache_policy: CachePolicies
    ignore_eos: bool
    constraint: Constraint | None
    logprobs: int | None
    draft: "LanguageModel | None"
    prompt_lookup: int


KEYWORDS = ("prompt", "max_tokens", "stream", "n", "logprobs", *GenerateSettings.__annotations__)
"""Of `LanguageModel.generate`."""

MAX_LOOKUP = 256
"""Most tokens that a look-up may guess at once: a pass over more takes longer than it may gain."""


class LanguageModel:
    """A decoder whose prompts and continuations are text.

    A prompt begins a document: first the end token, which precedes every document in training, then the tokens of the
    prompt. A continuation stops before the next end token, unless end tokens are ignored. `model(prompt)` is
    `model.generate(prompt)`.
    """

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, folder: Path | None = None) -> None:
        """folder: the model folder that both were read from; None for a model in memory alone."""
        check_kind("decoder", decoder, Decoder, "a decoder; linnet.load reads a model with its tokenizer")
        check_kind("tokenizer", tokenizer, Tokenizer, "a tokenizer, as Tokenizer.load reads it")
        if tokenizer.vocab_size > decoder.spec.vocab_size:
            raise UserError(
                f"the tokenizer has {tokenizer.vocab_size} tokens: "
                f"expected at most the model's vocab_size, which is {decoder.spec.vocab_size}"
            )
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.folder = folder

    def __repr__(self) -> str:
        spec, weight = self.spec, next(self.decoder.parameters(), None)
        kinds = ", ".join(dict.fromkeys(spec.layer_kinds))
        shape = f"{numbers.counted(spec.layers, 'layer')} of width {spec.d_model} ({kinds})"
        sizes = f"vocabulary {spec.vocab_size:,}, context {spec.context_length:,}"
        stored = f"{'' if weight is None else str(weight.dtype).removeprefix('torch.') + ' '}on {self.decoder.device}"
        parameters = numbers.metric(model_cost(spec).parameters)
        return f"LanguageModel({spec.name}: {shape}, {parameters} parameters, {sizes}, {stored})"

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The chat template of the model's folder, or of the published model that it is from; else the plain one."""
        return ChatTemplate.find(*(() if self.folder is None else (self.folder, self.folder / PUBLISHED)))

    @property
    def spec(self) -> ModelSpec:
        """The model's description."""
        return self.decoder.spec

    @torch.inference_mode()
    def logits(self, text: str) -> Tensor:
        """`[T, V]`: the logits in one pass over a document that begins with `text`.

        The first row is the prediction of the text's first token, behind the end token that begins a document; the last
        one predicts what follows the text. Layers that calibrate do so on the whole text, as `generate` does with a
        prompt. `UserError` for a model of pairs, and for more tokens than learned positions.
        """
        check_text("text", text)
        (tokens,) = self._documents(text, "logits")
        tokens_1T = torch.tensor([tokens], device=self.decoder.device)
        logits_1TV: Tensor = self.decoder(tokens_1T)
        return logits_1TV[0, :, : self.tokenizer.vocab_size]

    @overload
    def logprobs(self, text: str, top: int = ...) -> list[TextEvent]: ...

    @overload
    def logprobs(self, text: list[str], top: int = ...) -> list[list[TextEvent]]: ...

    def logprobs(self, text: str | list[str], top: int = 0) -> list[TextEvent] | list[list[TextEvent]]:
        """The tokens of a text, or of each of several, each with its log-probability and the `top` likeliest ones.

        The text begins a document. The sum is the log-likelihood of its tokens in nats that `evaluate` reports for a
        document, without the end token behind it. Errors, and layers that calibrate, as of `logits`.
        """
        check_whole("top", top)
        rows = self._documents(text, "logprobs")
        found: list[list[TextEvent]] = []
        for row, events in zip(
            rows, token_log_probabilities(self.decoder, rows, self.tokenizer.vocab_size, top), strict=True
        ):
            text_events = TextEvents(self.tokenizer, row[:1])
            found.append([out for event in events for out in text_events.push(event)] + text_events.finish())
        return found[0] if isinstance(text, str) else found

    def embed(self, text: str | list[str]) -> Tensor:
        """`[D]`, or `[N, D]` for a list: the mean of the last hidden states over the tokens of a text, in float32.

        The last hidden states are what the head reads, behind the last norm. An empty text has one token, the end token
        that begins a document. Texts of any lengths are read together, and get what each gets alone up to rounding.
        Errors as of `logits`.
        """
        rows = self._documents(text, "embed")
        means_ND = mean_hidden(self.decoder, rows)
        return means_ND[0] if isinstance(text, str) else means_ND

    def values(self, texts: Sequence[str]) -> list[float]:
        """The number that a reward model gives to each text: the higher, the better.

        It is read at the last token: a text is a prompt with its answer, in the form of the model's chat template, but
        without the stop token. Errors as of `logits`; `UserError` for a model that is no reward model.
        """
        if not self.spec.head.value:
            accepted = "a reward model (training.preference.kind: reward)"
            raise UserError(f"{self.folder or self.spec.name}: gives texts no value", accepted=accepted)
        return last_values(self.decoder, self._documents(texts, "values"))

    def _documents(self, texts: str | Sequence[str], name: str) -> list[list[int]]:
        """The tokens of texts that begin documents; `UserError` if the model cannot read them alone, or so many."""
        rows = [self.prompt_tokens(text) for text in texts_of("text", texts)]
        self.check_read_alone(rows, "text", name)
        return rows

    def check_read_alone(self, rows: Sequence[Sequence[int]], field: str, caller: str | None = None) -> None:
        """`UserError` if the model cannot read rows of tokens in one pass, without an input and without a state.

        field: names the rows in messages; caller: who reads them, where the model is what cannot be (None: the field).
        """
        spec, longest = self.spec, max(map(len, rows), default=0)
        if spec.encoder is not None or spec.prefix:
            raise UserError("the model follows from an input", field=caller or field, accepted="a model of text alone")
        if spec.embedding.positions == "learned" and longest > spec.context_length:
            accepted = f"at most {spec.context_length} tokens, where the model's learned positions end"
            raise UserError(field=field, value=f"{longest} tokens", accepted=accepted)

    @overload
    def generate(
        self, prompt: str, max_tokens: int = ..., *, stream: Literal[True], **settings: Unpack[StreamSettings]
    ) -> Continuation: ...

    @overload
    def generate(self, prompt: str, max_tokens: int = ..., **settings: Unpack[GenerateSettings]) -> str: ...

    @overload
    def generate(
        self, prompt: str, max_tokens: int = ..., *, n: int, **settings: Unpack[GenerateSettings]
    ) -> list[str]: ...

    @overload
    def generate(
        self, prompt: list[str], max_tokens: int = ..., *, n: int = ..., **settings: Unpack[GenerateSettings]
    ) -> list[str]: ...

    @overload
    def generate(
        self, prompt: str, max_tokens: int = ..., *, logprobs: int, **settings: Unpack[GenerateSettings]
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: str, max_tokens: int = ..., *, n: int, logprobs: int, **settings: Unpack[GenerateSettings]
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompt: list[str],
        max_tokens: int = ...,
        *,
        n: int = ...,
        logprobs: int,
        **settings: Unpack[GenerateSettings],
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: str | list[str],
        max_tokens: int = 200,
        *,
        stream: bool = False,
        n: int | None = None,
        logprobs: int | None = None,
        cache_policy: CachePolicies = FULL,
        ignore_eos: bool = False,
        input: str | list[str] | None = None,
        stop: str | Sequence[str] = (),
        parse_special: bool = False,
        json_schema: Mapping[str, Any] | bool | str | None = None,
        regex: str | None = None,
        choices: Sequence[str] | None = None,
        grammar: str | None = None,
        draft: "LanguageModel | None" = None,
        prompt_lookup: int = 0,
        beams: int | None = None,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        **settings: Unpack[SamplingSettings],
    ) -> str | list[str] | Completion | list[Completion] | Continuation:
        """The continuation of a prompt, or of each of several prompts as one batch; the prompt itself is not repeated.

        The other keywords are the fields of `Sampling`: temperature 0 takes the most likely token each time, and the
        same seed gives the same text. `stream`: return an iterator over pieces of the text, for one prompt. An empty
        prompt begins a new document. `cache_policy`: what the layers keep of the past, as text or for each layer
        (`layer_cache_policies`). `ignore_eos`: continue after end tokens until there are `max_tokens`, which include
        the end tokens; they print nothing. `input`: for a model of pairs, the text that is continued, one for each
        prompt; the prompt is how the continuation begins. `stop`: a text or several; the continuation ends before the
        first of them. `parse_special`: see the method of this name.

        `n`: a list of so many continuations of each prompt, at most 1,024; number `i` of the list has `seed + i`, and
        is the text that this seed gives alone. `logprobs`: return a `Completion` for each text, with the
        log-probability of each token, and of that number of the likeliest tokens at its place.

        At most one constraint (`inference.constrained`, needs `linnet[constrained]`): `json_schema`, as data or JSON
        text; `regex`, which the whole text matches; `choices`, one of which it is; `grammar`, in llguidance's Lark. A
        text that `max_tokens` or `stop` does not cut off satisfies it.

        `draft`, `prompt_lookup`: guess tokens of a single text with a smaller model of the same tokenizer, or up to so
        many at once from an earlier place of the text; tokens stay the same (`inference.speculative`).

        `beams`: the best text that a search with so many beams finds, with `length_penalty` and `early_stopping`
        (`beam_search`); nothing is drawn.

        Raises `UserError` for an invalid value, and for more tokens than learned positions.
        """
        sampling = sampling_of(settings, KEYWORDS)
        model = self.parsing_special() if parse_special else self
        constraint = constraint_of(json_schema, regex, choices, grammar)
        prompts, own_inputs = texts_of("prompt", prompt), None if input is None else texts_of("input", input)
        if n is not None:
            check_whole("n", n, 1, MAX_TEXTS)
        if beams is not None:
            beside = {
                "stream": stream,
                "n": n is not None,
                "logprobs": logprobs is not None,
                "stop": bool(stop_texts(stop)),
                "a constraint": constraint is not None,
                "draft": draft is not None,
                "prompt_lookup": prompt_lookup != 0,
            }
            search: dict[str, Any] = {"length_penalty": length_penalty, "early_stopping": early_stopping}
            search |= {"cache_policy": cache_policy, "ignore_eos": ignore_eos, **settings}
            best = model._best_texts(prompts, input, max_tokens, beams, beside, search)
            return best[0] if isinstance(prompt, str) else best
        how: ContinuationSettings = {
            "cache_policy": cache_policy,
            "ignore_eos": ignore_eos,
            "constraint": constraint,
            "logprobs": logprobs,
            "draft": draft.parsing_special() if parse_special and isinstance(draft, LanguageModel) else draft,
            "prompt_lookup": prompt_lookup,
        }
        if not stream:
            copies, stops = 1 if n is None else n, stop_texts(stop)
            found = model.completions(prompts, max_tokens, sampling, own_inputs, stops, copies, **how)
            if isinstance(prompt, str) and n is None:
                return found[0].text if logprobs is None else found[0]
            return [each.text for each in found] if logprobs is None else found
        if not isinstance(prompt, str) or n is not None:
            given = f"one text, got n: {n}" if isinstance(prompt, str) else f"one prompt, got a list of {len(prompts)}"
            raise UserError(f"stream: True: expected {given}")
        if isinstance(input, list):
            raise UserError(f"a list of {len(input)}", field="input", accepted="one text for one prompt")
        return model.stream(prompt, max_tokens, sampling, input, stop_texts(stop), **how)

    __call__ = generate

    def events(self, prompt: str, max_tokens: int = 200, **settings: Unpack[StreamSettings]) -> Iterator[TextEvent]:
        """The continuation of a prompt token by token: the text that each brought; with `logprobs`, how likely it was.

        Settings as of `generate`. The texts of the events add up to that of `generate`.
        """
        return self.generate(prompt, max_tokens, stream=True, **settings).events()

    def beam_search(
        self,
        prompt: str,
        max_tokens: int = 200,
        beams: int = 4,
        *,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        cache_policy: CachePolicies = FULL,
        ignore_eos: bool = False,
        input: str | None = None,
        **settings: Unpack[SamplingSettings],
    ) -> list[ScoredText]:
        """The best continuations of a prompt that a search with `beams` beams finds, as many, the best first.

        length_penalty, early_stopping: see `BeamSearch`, as in Transformers. The other settings are those of
        `generate`: bias and penalties change the log-probabilities; `UserError` for settings of drawing, as nothing is
        drawn.
        """
        search = BeamSearch(beams, length_penalty, early_stopping)
        for name in settings:
            if name not in SamplingSettings.__annotations__:
                if name in KEYWORDS:  # `sampling_of` names what is meant by another
                    problem = f"a search for the best text has no {name}; leave it out"
                    raise UserError(problem, field="beams", value=beams)
            elif name not in GREEDY_SETTINGS and not (name == "temperature" and settings["temperature"] == 0):
                problem = f"nothing is drawn, so {name} has no effect; leave it out"
                raise UserError(problem, field="beams", value=beams)
        check_text("prompt", prompt)
        inputs = self.prefill_inputs([prompt], None if input is None else [input])
        context = inputs.context(self.decoder)
        check_memory_of_encoder(self.decoder, None, context)
        (tokens,) = inputs.prompts
        found = beam_search(
            self.decoder,
            tokens,
            max_tokens,
            search,
            () if ignore_eos else self.tokenizer.end_ids,
            cache_policy=layer_cache_policies(self.decoder, cache_policy),
            vocab_size=self.tokenizer.vocab_size,
            context=context,
            sampling=replace(sampling_of(settings, KEYWORDS), temperature=0.0),
        )
        texts = [self.tokenizer.decode(one.tokens, tokens) for one in found]
        return [
            ScoredText(text, one.tokens, one.score, one.finish_reason) for text, one in zip(texts, found, strict=True)
        ]

    def _best_texts(
        self,
        prompts: Sequence[str],
        input: str | Sequence[str] | None,
        max_tokens: int,
        beams: int,
        beside: Mapping[str, bool],
        search: Mapping[str, Any],
    ) -> list[str]:
        """The best text that a search finds for each prompt; `UserError` for what is asked for `beside` a search."""
        for name in (name for name, is_used in beside.items() if is_used):
            raise UserError(f"a search for the best text has no {name}; leave it out", field="beams", value=beams)
        inputs = [input] * len(prompts) if input is None or isinstance(input, str) else input
        if len(inputs) != len(prompts):
            problem, accepted = f"{len(inputs)} of them", f"one for each of {len(prompts)} prompts"
            raise UserError(problem, field="input", accepted=accepted)
        return [
            self.beam_search(prompt, max_tokens, beams, input=own, **search)[0].text
            for prompt, own in zip(prompts, inputs, strict=True)
        ]

    def with_calibration(self, source: str, seed: int | None = None) -> "LanguageModel":
        """The same model with a stored calibration from a file, or by a name that the kind of layer knows.

        seed: decides a random calibration. `UserError` if the model has no such layer, or the file does not fit it.
        """
        if seed is not None:
            check_whole("seed", seed, 0, MAX_INTEGER)
        seed = fresh_seed() if seed is None else seed
        return LanguageModel(with_calibration_from(self.decoder, source, seed), self.tokenizer, self.folder)

    def parsing_special(self) -> "LanguageModel":
        """The same model, but names of special tokens in its texts become these tokens, as a chat model needs them.

        A prompt that begins with such a token has no end token before it.
        """
        return LanguageModel(self.decoder, self.tokenizer.parsing_special(), self.folder)

    def stream(
        self,
        prompt: str | Sequence[int],
        max_tokens: int,
        sampling: Sampling,
        input: str | None = None,
        stop: Sequence[str] = (),
        **settings: Unpack[ContinuationSettings],
    ) -> Continuation:
        """The continuation of one prompt, piece by piece, with its figures and its state.

        prompt: a text, or the tokens that `prompt_tokens` made of it.
        """
        stops, inputs = stop_texts(stop), None if input is None else [input]
        prefill, (stream,), state = self._streams([prompt], inputs, max_tokens, sampling, True, 1, **settings)
        (tokens,) = prefill.prompts
        caches, cache_policy = settings.get("caches", Caches()), settings.get("cache_policy", FULL)
        keeps = caches.calibration and cache_policy not in (RecalibratingCache(), RecalibratingCache.name)
        calibrated = Caches(False, keeps).calibrated_bytes(self.decoder)
        held = state.held_nbytes if state is not None else lambda _: calibrated
        return Continuation(stream, TextEvents(self.tokenizer, tokens, stops), len(tokens), held, state)

    def completions(
        self,
        prompts: Sequence[str],
        max_tokens: int,
        sampling: Sampling,
        inputs: Sequence[str] | None = None,
        stop: Sequence[str] = (),
        copies: int = 1,
        **settings: Unpack[ContinuationSettings],
    ) -> list[Completion]:
        """`copies` continuations of each prompt, generated as one batch; steps are taken until every row has ended.

        Each prompt is read once.
        """
        prompts, stops = texts_of("prompt", prompts), stop_texts(stop)
        inputs = None if inputs is None else texts_of("input", inputs)
        check_whole("copies", copies, 1)
        if not prompts:
            return []
        if inputs is not None and len(inputs) != len(prompts):
            raise UserError(f"{len(inputs)} of them", field="input", accepted=f"one for each of {len(prompts)} prompts")
        prefill, streams, _ = self._streams(prompts, inputs, max_tokens, sampling, False, copies, **settings)
        behind = [tokens for tokens in prefill.prompts for _ in range(copies)]
        rows = [
            (
                Continuation(stream, TextEvents(self.tokenizer, tokens, stops), len(tokens), lambda _: 0),
                list[TextEvent](),
            )
            for stream, tokens in zip(streams, behind, strict=True)
        ]
        while running := [(row, events) for row, events in rows if not row.has_ended]:
            for row, events in running:
                events.extend(row.advance())
        return [
            Completion("".join(event.text for event in events), events, row.finish_reason or "length")
            for row, events in rows
        ]

    def _streams(
        self,
        prompts: Sequence[str | Sequence[int]],
        own_inputs: Sequence[str] | None,
        max_tokens: int,
        sampling: Sampling,
        keep_state: bool,
        copies: int,
        *,
        caches: Caches = Caches(),
        cache_policy: CachePolicies = FULL,
        ignore_eos: bool = False,
        constraint: Constraint | None = None,
        logprobs: int | None = None,
        draft: "LanguageModel | None" = None,
        prompt_lookup: int = 0,
    ) -> tuple[PrefillInputs, list[Stream], DecoderState | None]:
        """What is read, `copies` streams for each prompt, and the state that reads them; None without the KV-cache."""
        check_whole("max_tokens", max_tokens, 1)
        check_kind("caches", caches, Caches, "Caches(kv=..., calibration=...)")
        check_logprobs(logprobs)
        check_sampling(sampling)
        inputs, sampling = self.prefill_inputs(prompts, own_inputs), seeded(sampling)
        repeated = [tokens for tokens in inputs.prompts for _ in range(copies)]
        counts = counts_of(repeated)
        speculation = self._speculation(prompts, own_inputs, max_tokens, sampling, counts, draft, prompt_lookup, caches)
        grammars = None
        if constraint is not None:
            grammars = [Grammar(self.tokenizer, constraint, tokens) for tokens in repeated]
        policies = layer_cache_policies(self.decoder, cache_policy)
        if any(isinstance(policy, RecalibratingCache) for policy in policies):
            caches = replace(caches, calibration=False)
        state = None
        if caches.kv:
            policies = caches.cache_policies(self.decoder, policies)
            state = new_state(self.decoder, inputs.prompts, max_tokens, policies, copies)
        for policy in policies:
            if not caches.kv and not isinstance(policy, FullCache | RecalibratingCache):
                problem = f"nothing is kept of the text, so a policy ({policy.label}) has no effect; use one"
                raise UserError(problem, field="kv_cache", value=False)
        streams = decode_streams(
            self.decoder,
            inputs.prompts,
            max_tokens,
            sampling,
            () if ignore_eos else self.tokenizer.end_ids,
            state=state,
            vocab_size=self.tokenizer.vocab_size,
            caches=caches,
            context=inputs.context(self.decoder),
            grammars=grammars,
            logprobs=logprobs,
            keep_state=keep_state,
            counts=counts,
            speculation=speculation,
            copies=copies,
        )
        return inputs, streams, state

    def _speculation(
        self,
        prompts: Sequence[str | Sequence[int]],
        inputs: Sequence[str] | None,
        max_tokens: int,
        sampling: Sampling,
        counts: Sequence[TokenCounts],
        draft: "LanguageModel | None",
        prompt_lookup: int,
        caches: Caches,
    ) -> Speculation | None:
        """Guesses for one prompt; None for several, after a note, or if none are asked for. sampling: with a seed."""
        if not self.check_guesses(draft, prompt_lookup):
            return None
        if not caches.kv:
            problem = "guesses need the state of the text, which is not kept; leave out draft and prompt_lookup"
            raise UserError(problem, field="kv_cache", value=False)
        if len(counts) > 1:
            note(f"{len(counts)} texts are generated as one batch, without guesses (draft, prompt_lookup)")
            return None
        proposer = None
        if draft is not None:
            prompt_tokens = len(self.prefill_inputs(prompts, inputs).prompts[0])
            own = draft.prefill_inputs(prompts, inputs)
            proposer = draft.proposer(own, max_tokens, sampling, counts[0], prompt_tokens)
        return speculation_of(prompt_lookup, proposer)

    def check_guesses(self, draft: "LanguageModel | None", prompt_lookup: int) -> bool:
        """True if guesses are asked for; `UserError` for those that this model cannot have."""
        accepted = f"0 (no look-up) or a number of tokens up to {MAX_LOOKUP}"
        check_whole("prompt_lookup", prompt_lookup, 0, MAX_LOOKUP, accepted)
        if draft is not None and not isinstance(draft, LanguageModel):
            raise UserError(field="draft", value=repr(draft), accepted="a model, as linnet.load reads it")
        if draft is not None and draft.tokenizer.hash != self.tokenizer.hash:
            accepted = f"one with the tokenizer of {self.spec.name}, whose hash is {self.tokenizer.hash[:12]}"
            raise UserError(
                f"its tokenizer is another one, {draft.tokenizer.hash[:12]}",
                field="draft",
                value=draft.folder or draft.spec.name,
                accepted=accepted,
            )
        return draft is not None or prompt_lookup > 0

    def proposer(
        self,
        inputs: PrefillInputs,
        max_tokens: int,
        sampling: Sampling,
        counts: TokenCounts,
        prompt_tokens: int,
        state: DecoderState | None = None,
    ) -> DraftModel:
        """This model as a draft of another, for which the prompt has `prompt_tokens` tokens.

        inputs: the prompt as this model reads it. state: has read a part of it, and is advanced.
        """
        decoder, (tokens,) = self.decoder, inputs.prompts
        room = len(tokens) + max_tokens
        if decoder.embedding.positions is not None:  # no guesses beyond them
            room = min(room, self.spec.context_length)
        context = EMPTY
        if state is None:
            context = inputs.context(decoder)
            check_memory_of_encoder(decoder, None, context)
        state = with_room(cache_policy_state(decoder, 1, 1) if state is None else state, room)
        reader, rest = CachedReader(decoder, state, context=context), tokens[state.position :]
        return DraftModel(decoder, reader, rest, prompt_tokens, sampling, counts, self.tokenizer.vocab_size)

    def prefill_inputs(
        self, prompts: Sequence[str | Sequence[int]], inputs: Sequence[str] | None = None
    ) -> PrefillInputs:
        """Prompts as token ids, as the model reads them, with an input for each if they have one.

        A prompt of token ids is taken as it is; `UserError` for what is neither.
        """
        end, encode = self.tokenizer.end_id, self.tokenizer.encode
        begin = self.prompt_tokens if inputs is None else lambda text: [end, *encode(text)]
        for prompt in prompts:
            if not isinstance(prompt, str):
                check_tokens("prompt", prompt, self.spec.vocab_size)
        read = [begin(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
        for text in inputs or ():
            check_text("input", text)
        sources = None if inputs is None else [[end, *encode(text), end] for text in inputs]
        return prefill_inputs(self.decoder, read, sources)

    def prompt_tokens(self, prompt: str) -> list[int]:
        """The end token (a document begins), then the prompt's tokens."""
        check_text("prompt", prompt)
        return self.tokenizer.encode_document(prompt)


def load(folder: str | Path, device: str = "auto", precision: str | None = None) -> LanguageModel:
    """Read a model folder, or the model of a training run's folder.

    `device`: auto (cuda where there is one), cpu, cuda, cuda:1. `precision`: float32, bfloat16, int8 or int4
    (`inference.weights`); None: as stored. Raises `UserError` that names the missing file, or the invalid value.
    """
    check_kind("folder", folder, (str, PathLike), "the path of a model folder")
    path = model_folder(folder)
    with not_replaced(path):
        decoder, tokenizer = load_decoder(path, resolve_device(device)), Tokenizer.load(path / TOKENIZER)
    if precision is not None:
        convert_weights(decoder, precision)
    return LanguageModel(decoder, tokenizer, path)
