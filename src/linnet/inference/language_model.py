"""A decoder with its tokenizer: text in, text out, and the figures of a generation."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Unpack, overload

import torch
from torch import Tensor

from linnet.core.atomic import not_replaced
from linnet.core.errors import UserError
from linnet.data.pieces import TextStream
from linnet.data.tokenizer import Tokenizer
from linnet.inference.cache_policy import CachePolicies, layer_cache_policies
from linnet.inference.device import resolve_device
from linnet.inference.engine import decode
from linnet.inference.prefill import PrefillInputs, new_state, prefill_inputs
from linnet.inference.readers import Caches, Step
from linnet.inference.sampling import Sampling, SamplingSettings, fresh_seed, sampling_of
from linnet.inference.weights import convert_weights
from linnet.layers.cache_policy import FULL, FullCache, RecalibratingCache
from linnet.model.calibration import with_calibration_from
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.folder import TOKENIZER, model_folder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState
from linnet.model.store import load_decoder
from linnet.present import numbers


@dataclass
class GenerationFigures:
    """The cost of a generation so far: time in the model, without the time that the caller takes for the text.

    passes: one over the prompt, which took seconds_prompt, and one per token, which together took seconds_decode.
    bytes_of_state: from a number of tokens to the bytes of a state that holds them.
    """

    prompt_tokens: int
    bytes_of_state: Callable[[int], int]
    tokens: int = 0
    passes: int = 0
    seconds_prompt: float = 0.0
    seconds_decode: float = 0.0

    @property
    def state_bytes(self) -> int:
        """Bytes of the decode state for the tokens so far."""
        return self.bytes_of_state(self.prompt_tokens + self.tokens)

    @property
    def tokens_per_second(self) -> float | None:
        """Decoded tokens per second; None before the first."""
        return (self.passes - 1) / self.seconds_decode if self.passes > 1 else None


class Continuation(Iterator[str]):
    """Pieces of text whose concatenation continues one prompt; each piece is whole characters and not empty."""

    def __init__(
        self,
        steps: Iterator[Step],
        text: TextStream,
        prompt_tokens: int,
        bytes_of_state: Callable[[int], int],
        state: DecoderState | None = None,
        ends: bool = True,
        stop: Sequence[str] = (),
    ) -> None:
        """bytes_of_state: see `GenerationFigures`. state: the state that the steps advance.

        ends: nothing follows, so that the bytes of an incomplete character become U+FFFD. stop: texts that end it.
        """
        self.state = state
        self.figures = GenerationFigures(prompt_tokens, bytes_of_state)
        self._steps, self._text, self._ends, self._until = steps, text, ends, _Until(stop)
        self._pieces = self._run()

    def __next__(self) -> str:
        return next(self._pieces)

    def _run(self) -> Iterator[str]:
        start_s = time.perf_counter()
        for (token,) in self._steps:
            elapsed_s = time.perf_counter() - start_s
            self.figures.passes += 1
            if self.figures.passes == 1:
                self.figures.seconds_prompt = elapsed_s
            else:
                self.figures.seconds_decode += elapsed_s
            if token is None:
                break
            self.figures.tokens += 1
            if piece := self._until.push(self._text.push(token)):
                yield piece
            if self._until.has_stopped:
                return
            start_s = time.perf_counter()
        if piece := self._until.push(self._text.finish() if self._ends else "") + self._until.finish():
            yield piece


class _Until:
    """Passes text on until the first of some texts; what may be the beginning of one is held back."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop, self._held, self.has_stopped = stop, "", False

    def push(self, piece: str) -> str:
        """What is certain to stand before any of the texts."""
        text = self._held + piece
        found = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            self._held, self.has_stopped = "", True
            return text[: min(found)]
        begun = [size for stop in self._stop for size in range(1, len(stop)) if text.endswith(stop[:size])]
        certain = len(text) - max(begun, default=0)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """What was held back, at the end."""
        return self._held


class GenerateSettings(SamplingSettings, total=False):
    """The settings of `LanguageModel.generate`."""

    cache_policy: CachePolicies
    ignore_eos: bool
    input: str | list[str] | None
    stop: str | Sequence[str]
    parse_special: bool


KEYWORDS = ("prompt", "max_tokens", "stream", *GenerateSettings.__annotations__)
"""Of `LanguageModel.generate`."""


class LanguageModel:
    """A decoder whose prompts and continuations are text.

    A prompt begins a document: first the end token, which precedes every document in training, then the tokens of the
    prompt. A continuation stops before the next end token, unless end tokens are ignored. `model(prompt)` is
    `model.generate(prompt)`.
    """

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, folder: Path | None = None) -> None:
        """folder: the model folder that both were read from; None for a model in memory alone."""
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
        shape = f"{spec.layers} layers of width {spec.d_model} ({', '.join(dict.fromkeys(spec.layer_kinds))})"
        sizes = f"vocabulary {spec.vocab_size:,}, context {spec.context_length:,}"
        stored = f"{'' if weight is None else str(weight.dtype).removeprefix('torch.') + ' '}on {self.decoder.device}"
        parameters = numbers.metric(model_cost(spec).parameters)
        return f"LanguageModel({spec.name}: {shape}, {parameters} parameters, {sizes}, {stored})"

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
        spec, tokens = self.spec, self.prompt_tokens(text)
        if spec.encoder is not None or spec.prefix:
            raise UserError("logits: the model follows from an input; expected a model of text alone")
        if spec.embedding.positions == "learned" and len(tokens) > spec.context_length:
            accepted = f"at most {spec.context_length} tokens, where the model's learned positions end"
            raise UserError(field="text", value=f"{len(tokens)} tokens", accepted=accepted)
        tokens_1T = torch.tensor([tokens], device=self.decoder.device)
        logits_1TV: Tensor = self.decoder(tokens_1T)
        return logits_1TV[0, :, : self.tokenizer.vocab_size]

    @overload
    def generate(
        self, prompt: str, max_tokens: int = ..., *, stream: Literal[True], **settings: Unpack[GenerateSettings]
    ) -> Continuation: ...

    @overload
    def generate(
        self, prompt: str, max_tokens: int = ..., *, stream: Literal[False] = ..., **settings: Unpack[GenerateSettings]
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: list[str],
        max_tokens: int = ...,
        *,
        stream: Literal[False] = ...,
        **settings: Unpack[GenerateSettings],
    ) -> list[str]: ...

    def generate(
        self,
        prompt: str | list[str],
        max_tokens: int = 200,
        *,
        stream: bool = False,
        cache_policy: CachePolicies = FULL,
        ignore_eos: bool = False,
        input: str | list[str] | None = None,
        stop: str | Sequence[str] = (),
        parse_special: bool = False,
        **settings: Unpack[SamplingSettings],
    ) -> str | list[str] | Continuation:
        """The continuation of a prompt, or of each of several prompts as one batch; the prompt itself is not repeated.

        The other keywords are the fields of `Sampling`: temperature 0 takes the most likely token each time, and the
        same seed gives the same text. `stream`: return an iterator over pieces of the text, for one prompt. An empty
        prompt begins a new document. `cache_policy`: what the layers keep of the past, as text or for each layer
        (`layer_cache_policies`). `ignore_eos`: continue after end tokens until there are `max_tokens`, which include
        the end tokens; they print nothing. `input`: for a model of pairs, the text that is continued, one for each
        prompt; the prompt is how the continuation begins. `stop`: a text or several; the continuation ends before the
        first of them. `parse_special`: see the method of this name.

        Raises `UserError` for an invalid value, and for more tokens than learned positions.
        """
        sampling = sampling_of(settings, KEYWORDS)
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(isinstance(text, str) and text for text in stop):
            raise UserError(field="stop", value=stop, accepted="texts that are not empty")
        model = self.parsing_special() if parse_special else self
        if not stream:
            prompts = [prompt] if isinstance(prompt, str) else prompt
            inputs = [input] if isinstance(input, str) else input
            texts = model.complete(
                prompts,
                max_tokens,
                sampling,
                cache_policy=cache_policy,
                ignore_eos=ignore_eos,
                inputs=inputs,
                stop=stop,
            )
            return texts[0] if isinstance(prompt, str) else texts
        if not isinstance(prompt, str):
            raise UserError(f"stream: True: expected one prompt, got a list of {len(prompt)}")
        if isinstance(input, list):
            raise UserError(f"a list of {len(input)}", field="input", accepted="one text for one prompt")
        return model.stream(prompt, max_tokens, sampling, Caches(), cache_policy, ignore_eos, input, stop)

    __call__ = generate

    def with_calibration(self, source: str, seed: int | None = None) -> "LanguageModel":
        """The same model with a stored calibration from a file, or by a name that the kind of layer knows.

        seed: decides a random calibration. `UserError` if the model has no such layer, or the file does not fit it.
        """
        seed = fresh_seed() if seed is None else seed
        return LanguageModel(with_calibration_from(self.decoder, source, seed), self.tokenizer, self.folder)

    def parsing_special(self) -> "LanguageModel":
        """The same model, but names of special tokens in its texts become these tokens, as a chat model needs them.

        A prompt that begins with such a token has no end token before it.
        """
        return LanguageModel(self.decoder, self.tokenizer.parsing_special(), self.folder)

    def stream(
        self,
        prompt: str,
        max_tokens: int,
        sampling: Sampling,
        caches: Caches = Caches(),
        cache_policy: CachePolicies = FULL,
        ignore_eos: bool = False,
        input: str | None = None,
        stop: Sequence[str] = (),
    ) -> Continuation:
        """The continuation of one prompt, piece by piece, with its figures and its state."""
        inputs = self.prefill_inputs([prompt], None if input is None else [input])
        (tokens,) = inputs.prompts
        steps, state = self._steps(inputs, max_tokens, sampling, caches, cache_policy, ignore_eos)
        keeps = caches.calibration and cache_policy not in (RecalibratingCache(), RecalibratingCache.name)
        calibrated = Caches(False, keeps).calibrated_bytes(self.decoder)
        held = state.held_nbytes if state is not None else lambda _: calibrated
        return Continuation(steps, self.tokenizer.stream(tokens), len(tokens), held, state, stop=stop)

    def complete(
        self,
        prompts: Sequence[str],
        max_tokens: int,
        sampling: Sampling,
        caches: Caches = Caches(),
        cache_policy: CachePolicies = FULL,
        ignore_eos: bool = False,
        inputs: Sequence[str] | None = None,
        stop: Sequence[str] = (),
    ) -> list[str]:
        """The continuations of several prompts, generated as one batch."""
        if not prompts:
            return []
        if inputs is not None and len(inputs) != len(prompts):
            raise UserError(f"{len(inputs)} of them", field="input", accepted=f"one for each of {len(prompts)} prompts")
        prefill = self.prefill_inputs(prompts, inputs)
        steps, _ = self._steps(prefill, max_tokens, sampling, caches, cache_policy, ignore_eos)
        if stop:
            return self._complete_until(steps, prefill, stop)
        texts: list[list[int]] = [[] for _ in prompts]
        for step in steps:
            for text, token in zip(texts, step, strict=True):
                if token is not None:
                    text.append(token)
        return [self.tokenizer.decode(text, after) for text, after in zip(texts, prefill.prompts, strict=True)]

    def _complete_until(self, steps: Iterator[Step], prefill: PrefillInputs, stop: Sequence[str]) -> list[str]:
        """The texts of a batch before the first of the texts `stop`; steps are taken until every row has one."""
        rows = [(self.tokenizer.stream(prompt), _Until(stop), list[str]()) for prompt in prefill.prompts]
        for step in steps:
            for (stream, until, pieces), token in zip(rows, step, strict=True):
                if token is not None and not until.has_stopped:
                    pieces.append(until.push(stream.push(token)))
            if all(until.has_stopped for _, until, _ in rows):
                break
        for stream, until, pieces in rows:
            if not until.has_stopped:
                pieces += [until.push(stream.finish()), until.finish()]
        return ["".join(pieces) for _, _, pieces in rows]

    def _steps(
        self,
        inputs: PrefillInputs,
        max_tokens: int,
        sampling: Sampling,
        caches: Caches,
        cache_policy: CachePolicies,
        ignore_eos: bool,
    ) -> tuple[Iterator[Step], DecoderState | None]:
        """The steps, and the state that they advance; None without the KV-cache."""
        policies = layer_cache_policies(self.decoder, cache_policy)
        if any(isinstance(policy, RecalibratingCache) for policy in policies):
            caches = replace(caches, calibration=False)
        state = None
        if caches.kv:
            policies = caches.cache_policies(self.decoder, policies)
            state = new_state(self.decoder, inputs.prompts, max_tokens, policies)
        for policy in policies:
            if not caches.kv and not isinstance(policy, FullCache | RecalibratingCache):
                problem = f"nothing is kept of the text, so a policy ({policy.label}) has no effect; use one"
                raise UserError(problem, field="kv_cache", value=False)
        steps = decode(
            self.decoder,
            inputs.prompts,
            max_tokens,
            sampling,
            () if ignore_eos else self.tokenizer.end_ids,
            state=state,
            vocab_size=self.tokenizer.vocab_size,
            caches=caches,
            context=inputs.context(self.decoder),
        )
        return steps, state

    def prefill_inputs(self, prompts: Sequence[str], inputs: Sequence[str] | None = None) -> PrefillInputs:
        """Prompts as token ids, as the model reads them, with an input for each if they have one."""
        if inputs is None:
            return prefill_inputs(self.decoder, [self.prompt_tokens(prompt) for prompt in prompts], None)
        end, encode = self.tokenizer.end_id, self.tokenizer.encode
        tokens = [[end, *encode(text), end] for text in inputs]
        return prefill_inputs(self.decoder, [[end, *encode(prompt)] for prompt in prompts], tokens)

    def prompt_tokens(self, prompt: str) -> list[int]:
        """The end token (a document begins), then the prompt's tokens."""
        return self.tokenizer.encode_document(prompt)


def load(folder: str | Path, device: str = "auto", precision: str | None = None) -> LanguageModel:
    """Read a model folder, or the model of a training run's folder.

    `device`: auto (cuda where there is one), cpu, cuda, cuda:1. `precision`: float32, bfloat16, int8 or int4
    (`inference.weights`); None: as stored. Raises `UserError` that names the missing file, or the invalid value.
    """
    path = model_folder(folder)
    with not_replaced(path):
        decoder, tokenizer = load_decoder(path, resolve_device(device)), Tokenizer.load(path / TOKENIZER)
    if precision is not None:
        convert_weights(decoder, precision)
    return LanguageModel(decoder, tokenizer, path)
