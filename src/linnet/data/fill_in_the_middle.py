"""Fill-in-the-middle: documents rearranged so that a model learns to write what stands between two texts.

A document is cut at two random characters into prefix, middle and suffix (Bavarian et al. 2022, "Efficient Training of
Language Models to Fill in the Middle", arXiv 2207.14255). In the order prefix-suffix-middle (PSM) it becomes

    PREFIX prefix SUFFIX suffix MIDDLE middle

and in the order suffix-prefix-middle (SPM), in which prefix and middle are one stretch of text,

    PREFIX SUFFIX suffix MIDDLE prefix middle

where the words in capitals are control tokens. Each part is encoded by itself, as it will be when a model fills a gap.
`prepare` rearranges documents once; a run may do it with those of each batch anew (`rearranged_batches`).
"""

from hashlib import blake2b
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from linnet.core.errors import UserError
from linnet.core.spec import Seed, Spec
from linnet.data.tokenizer import Tokenizer

Share = Annotated[float, Field(ge=0, le=1)]
Order = Literal["psm", "spm"]


class FillInTheMiddle(Spec):
    """rate: the share of the documents that are rearranged. spm_rate: the share of these that are in the order SPM.

    tokens: the names of the control tokens PREFIX, SUFFIX and MIDDLE. The seed and the text of a document determine
    what becomes of it.
    """

    rate: Share = 0.5
    spm_rate: Share = 0.5
    tokens: tuple[str, str, str] = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    seed: Seed = 0

    @model_validator(mode="after")
    def _tokens_differ(self) -> Self:
        if len(set(self.tokens)) < len(self.tokens) or not all(self.tokens):
            raise ValueError(f"tokens: {', '.join(self.tokens)}: expected three different names")
        return self


class Section(NamedTuple):
    """A stretch of text of a document that is encoded by itself, and the control tokens before it."""

    controls: tuple[int, ...]
    text: str


class Rearranger:
    """Rearranges documents, and counts what it did."""

    def __init__(self, spec: FillInTheMiddle, tokenizer: Tokenizer, field: str = "fim_tokens") -> None:
        """`UserError`, which names `field`, if the tokenizer does not have a control token, as a special token."""
        self._spec, self.documents, self.psm, self.spm = spec, 0, 0, 0
        ids = tokenizer.special_ids
        for name in spec.tokens:
            if name not in ids or ids[name] in tokenizer.end_ids:
                known = [each for each, token in ids.items() if token not in tokenizer.end_ids]
                accepted = f"three of its special tokens ({', '.join(known[:12]) or 'it has none but end tokens'})"
                raise UserError(f"the tokenizer has no such control token {name}", field=field, accepted=accepted)
        self._prefix, self._suffix, self._middle = (ids[name] for name in spec.tokens)

    def sections(self, text: str) -> list[Section]:
        """The sections of a document, in their order."""
        key = blake2b(text.encode(), digest_size=16, person=b"fill in").digest()
        random = np.random.Generator(np.random.PCG64([self._spec.seed, int.from_bytes(key)]))
        order = self.drawn_order(random)
        return [Section((), text)] if order is None else self.cut(text, order, random)

    def drawn_order(self, random: np.random.Generator) -> Order | None:
        """The order of a document that is drawn; None: it stays as it is."""
        self.documents += 1
        is_kept, is_psm = random.random(2) >= (self._spec.rate, self._spec.spm_rate)
        return None if is_kept else "psm" if is_psm else "spm"

    def cut(self, text: str, order: Order, random: np.random.Generator) -> list[Section]:
        """The sections of a text that is cut at two random characters, in this order."""
        first, second = sorted(random.integers(0, len(text) + 1, 2).tolist())
        prefix, middle, suffix = text[:first], text[first:second], text[second:]
        if order == "psm":
            self.psm += 1
            return [
                Section((self._prefix,), prefix),
                Section((self._suffix,), suffix),
                Section((self._middle,), middle),
            ]
        self.spm += 1
        return [
            Section((self._prefix, self._suffix), suffix),
            Section((self._middle,), prefix),
            Section((), middle),
        ]

    def describe(self) -> str:
        """What was rearranged, in one line."""
        return (
            f"fill in the middle: {self.psm + self.spm:,} of {self.documents:,} documents to train on: {self.psm:,}"
            f" with the prefix first, {self.spm:,} with the suffix first"
        )
