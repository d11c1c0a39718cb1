"""The model and the text of an inspection, as inspections that a kind of layer brings see them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnet.core.errors import UserError
from linnet.data.loader import document_windows
from linnet.data.shards import TokenSequence
from linnet.data.split import Split
from linnet.evaluation.models import ModelOnData, load_text_model, text_model_on_data
from linnet.inference.decode import decode
from linnet.inference.language_model import LanguageModel
from linnet.inference.readers import Caches
from linnet.inference.sampling import Sampling
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.cache_policy import CachePolicy, RecalibratingCache
from linnet.layers.registry import inspections
from linnet.model.stack import Block
from linnet.present.result import Result


class TextModel:
    """A model that reads text, as an inspection that a kind of layer brings sees it (`layers.inspection`)."""

    def __init__(self, language_model: LanguageModel, on_data: ModelOnData | None = None) -> None:
        decoder = language_model.decoder
        self.language_model, self.on_data, self.decoder = language_model, on_data, decoder
        self.tokenizer: Any = language_model.tokenizer
        self.mixers, self.kinds = decoder.mixers, decoder.spec.layer_kinds
        self.context_length = decoder.spec.context_length if on_data is None else on_data.context_length
        self.positions: str = decoder.spec.embedding.positions

    def check_positions(self, tokens: int, field: str) -> None:
        known = self.decoder.spec.context_length
        if tokens > known and self.positions == "learned":
            raise UserError(f"the model's learned positions end at {known}", field=field, value=tokens)

    def prompt_tokens(self, prompt: str) -> list[int]:
        return self.language_model.prompt_tokens(prompt)

    @torch.no_grad()
    def auxiliary_outputs(self, tokens_BT: Tensor) -> list[dict[str, Tensor]]:
        return self.decoder.auxiliary_outputs(tokens_BT.to(self.decoder.device))

    @torch.no_grad()
    def mixer_inputs(self, tokens_BT: Tensor) -> list[Tensor]:
        found: list[Tensor] = []

        def append(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            found.append(inputs[0])

        hooks = [mixer.register_forward_pre_hook(append) for mixer in dict.fromkeys(self.mixers)]  # a shared mixer once
        try:
            self.decoder.hidden(tokens_BT.to(self.decoder.device))
        finally:
            for hook in hooks:
                hook.remove()
        return found

    @torch.no_grad()
    def first_mixer_inputs(self, tokens_V: Tensor) -> Tensor:
        x_1VD: Tensor = self.decoder.embedding(tokens_V[None].to(self.decoder.device), BatchLayout())
        block, layer = self.decoder.blocks[0], self.decoder.layers[0]
        assert isinstance(block, Block)
        if block.project is not None:
            x_1VD = block.project(x_1VD)
        x_1VD = layer.mix_embedding(x_1VD, x_1VD)
        return layer.mixer_norm(x_1VD) if layer.pre else x_1VD

    @torch.no_grad()
    def losses(self, tokens_BT: Tensor) -> Tensor:
        tokens_BT = tokens_BT.to(self.decoder.device)
        logits_BTV = self.decoder(tokens_BT[:, :-1]).double()
        return F.cross_entropy(logits_BTV.mT, tokens_BT[:, 1:], reduction="none").cpu()

    def continue_prompt(
        self, prompt: str, max_tokens: int, kv_cache: bool, cache_policy: CachePolicy
    ) -> Iterator[tuple[int | None, list[dict[str, Tensor]]]]:
        outputs: list[dict[str, Tensor]] = []
        steps = decode(
            self.decoder,
            [self.prompt_tokens(prompt)],
            max_tokens,
            Sampling(temperature=0.0),
            self.tokenizer.end_ids,
            vocab_size=self.tokenizer.vocab_size,
            caches=Caches(kv_cache, not isinstance(cache_policy, RecalibratingCache)),
            record=AuxiliaryOutputs(outputs=outputs),
        )
        for (token,) in steps:
            found = list(outputs)
            outputs.clear()  # those of one step take gigabytes for a large model
            yield token, found

    def windows(self, count: int) -> Tensor:
        assert self.on_data is not None
        return spread_windows(self.on_data.sequence, count, self.context_length)

    def documents(self, count: int, tokens: int, seed: int) -> Tensor:
        assert self.on_data is not None
        return document_prompts(self.on_data.sequence, count, tokens, seed)


class TextInspection(Result):
    """The base of inspections of a model on a split of a data folder. about: the model, the folder and the options."""

    subject: ClassVar[str]
    about: dict[str, Any]

    def title(self) -> str:
        return f"{self.subject} of {self.about['model']}"

    def facts(self) -> dict[str, str]:
        return {"text": f"{self.about['split']} split of {self.about['data']}"}


def spread_windows(sequence: TokenSequence, count: int, context_length: int) -> Tensor:
    """Up to `count` evenly spaced windows `[N, T]` that begin with a document if possible; `UserError` without one."""
    if len(sequence) <= context_length:
        raise UserError(
            f"{sequence.name}: {len(sequence)} tokens: expected more than a window of {context_length};"
            " prepare more text or choose a shorter `context_length`"
        )
    starts = document_windows(sequence, context_length).whole_windows(sequence, context_length).starts_N
    chosen = np.unique(np.linspace(0, len(starts) - 1, min(count, len(starts))).astype(int))
    return torch.from_numpy(np.stack([sequence.read(int(starts[i]), context_length) for i in chosen]))


def document_prompts(sequence: TokenSequence, count: int, tokens: int, seed: int) -> Tensor:
    """The beginnings `[N, T]` of documents drawn at random: the end token before them, then their own tokens.

    Documents with at least `tokens` tokens are drawn without replacement; all of them if there are at most `count`.
    `UserError` if there are fewer than two.
    """
    ends = sequence.document_bounds
    lengths = np.diff(ends)
    long_enough = ends[:-1][lengths >= tokens]
    if len(long_enough) < 2:
        longest = int(lengths.max(initial=0))
        raise UserError(
            f"{len(long_enough)} documents of {sequence.name} have at least this many (the longest has {longest}, with"
            " its end token): expected at least two",
            field="tokens",
            value=tokens,
        )
    chosen = np.random.Generator(np.random.PCG64(seed)).permutation(long_enough)[:count]
    return torch.from_numpy(np.stack([sequence.read(int(start), tokens) for start in chosen]))


@dataclass(frozen=True)
class Target:
    """What `linnet inspect NAME` was given: a model folder or a file, and data if there are any."""

    source: str
    data: str | None = None
    split: Split = "validation"
    context_length: int | None = None
    device: str = "auto"

    @cached_property
    def _model(self) -> TextModel:
        if self.data is None:
            return TextModel(load_text_model(self.source, self.device))
        # The text is read in one pass, so what a layer calibrates on another text plays no part.
        found = text_model_on_data(self.source, self.data, self.split, self.context_length, "empty", self.device)
        return TextModel(LanguageModel(found.decoder, found.data.tokenizer), found)

    def model(self) -> TextModel:
        """Load the model; `UserError` for one that does not read text, or does not fit the data."""
        return self._model


def inspect_model(name: str, target: Target, **options: Any) -> Any:
    """Run an inspection that a kind of layer brings (`layers.registry.inspections`), and give its `Result`."""
    inspection = inspections()[name]
    return inspection.run(target, inspection.options.parse(options, f"inspect {name}"))
