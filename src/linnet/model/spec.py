"""The typed description of a model: everything that a decoder can be, as data."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from linnet.core.spec import Amount, Count, Extent, Spec, Vocabulary
from linnet.layers.registry import MIXERS, AnyFeedForward, AnyMixer, kinds_with_operators, operator_files
from linnet.nn.norms import BlockNormSpec, NormSpec

PRESETS = Path(__file__).parent / "presets"


class EmbeddingSpec(Spec):
    """Token embedding: `scale` multiplies by `sqrt(d_model)`; `positions: learned` adds a vector for each position.

    `positions: sinusoidal` adds sines and cosines of it, which no parameter is and no position ends.
    `width` differs from the model's where given: a projection stands behind the token vectors, and one back before a
    tied head (OPT-350M). `skip`: what it gives is mixed into the input of every layer, with two learned numbers each
    that start at 1 for the stream and 0 for it.
    """

    width: Extent | None = None
    scale: bool = False
    positions: Literal["none", "learned", "sinusoidal"] = "none"
    norm: NormSpec | None = None
    skip: bool = False


class BlockSpec(Spec):
    """`repeat` equal layers: a mixer and a feed-forward, each on a residual branch with a normalisation.

    `residual`: the feed-forward reads what the mixer has left (`sequential`), or both read the same and are added at
    once (`parallel`: GPT-NeoX; with `placement: pre`). `width` differs from the model's where given (a projection
    appears where it changes); `share_weights` makes the repeated layers one set of weights.
    """

    repeat: Count = 1
    mixer: AnyMixer
    feed_forward: AnyFeedForward | None = None
    norm: BlockNormSpec = BlockNormSpec()
    residual: Literal["sequential", "parallel"] = "sequential"
    width: Extent | None = None
    share_weights: bool = False

    @model_validator(mode="after")
    def _parallel_branches_are_normalised_first(self) -> Self:
        if self.residual == "parallel" and self.norm.placement != "pre":
            raise ValueError(f"residual: parallel: goes with norm.placement: pre, not {self.norm.placement}")
        return self


class HeadSpec(Spec):
    """From the last layer to logits: an optional normalisation, then the embedding's own matrix (`tied`) or another.

    soft_cap: what logits come near to and never pass, `soft_cap tanh(logits / soft_cap)` (Gemma 2: 30); null for none.
    """

    tied: bool = True
    bias: bool = False
    norm: NormSpec | None = None
    soft_cap: PositiveFloat | None = None

    @model_validator(mode="after")
    def _no_bias_when_tied(self) -> Self:
        if self.tied and self.bias:
            raise ValueError("bias: True: a tied head has no bias; use tied: false or bias: false")
        return self


class InitialisationSpec(Spec):
    """Starting values. Biases are 0, norms 1; what a mixer holds beside linear layers it initialises itself.

    linear: `normal` with `std`, or `xavier_uniform` (each map of a fused layer by its own shape). Projections where the
        width changes are always the latter: they stand in the residual stream, whose size they keep.
    embedding_std: standard deviation of token and position embeddings.
    scale_residual: divide the std of each branch's last map by `sqrt(2 * layers)` (GPT-2).
    zero_outputs: each branch's last map at 0, its bias too, so that every layer begins as if it were not there; that of
        `scale_residual` is 0 as well.
    operator: of layers whose operator is given (plga's fixed one): identity, random (normal), or a file.
    """

    linear: Literal["normal", "xavier_uniform"] = "normal"
    std: PositiveFloat = 0.02
    embedding_std: PositiveFloat = 0.02
    scale_residual: bool = False
    zero_outputs: bool = False
    operator: str = "identity"

    @property
    def operator_file(self) -> Path | None:
        """The file that the operators come from; None where they come from none."""
        return operator_file(self.operator)


class ModelSpec(Spec):
    """A whole decoder.

    In its place `operator: learned | identity | random | FILE` is accepted too: said once for all layers that have one.
    """

    name: str = "model"
    vocab_size: Vocabulary
    d_model: Extent
    context_length: Amount
    embedding: EmbeddingSpec = EmbeddingSpec()
    blocks: list[BlockSpec] = Field(min_length=1)
    head: HeadSpec = HeadSpec()
    initialisation: InitialisationSpec = InitialisationSpec()

    @model_validator(mode="before")
    @classmethod
    def _one_operator_for_all(cls, data: Any) -> Any:
        return _with_operator(data) if isinstance(data, dict) and data.get("operator") is not None else data

    @model_validator(mode="after")
    def _sublayers_fit_widths(self) -> Self:
        for index, block in enumerate(self.blocks):
            for name, part in (("mixer", block.mixer), ("feed_forward", block.feed_forward)):
                try:
                    if part is not None:
                        part.check(block.width or self.d_model)
                except ValueError as error:
                    raise ValueError(f"blocks[{index}].{name}.{error}") from None
        return self

    @model_validator(mode="after")
    def _blocks_fit_each_other(self) -> Self:
        check_together(self.blocks, self.d_model, self.embedding.skip)
        return self

    @model_validator(mode="after")
    def _operators_for_layers_that_take_them(self) -> Self:
        source = self.initialisation.operator
        if source != "identity" and not any(block.mixer.takes_operator for block in self.blocks):
            kinds = kinds_with_operators()
            raise ValueError(
                f"initialisation.operator: {source}: goes with operator: fixed, which no {kinds} block has"
            )
        return self

    @property
    def layers(self) -> int:
        """How many layers a token passes."""
        return sum(block.repeat for block in self.blocks)

    @property
    def layer_kinds(self) -> list[str]:
        """The mixer of each layer, by kind."""
        return [block.mixer.kind for block in self.blocks for _ in range(block.repeat)]

    @classmethod
    def load(cls, source: str | Path) -> "ModelSpec":
        """A model's description from a preset's name, a YAML file, or a model folder."""
        from linnet.model.store import read_description  # on use: what is stored are models of this description

        return cls.parse(read_description(source), str(source))

    def replace(self, **changes: Any) -> "ModelSpec":
        """A validated copy with some fields changed."""
        return ModelSpec.parse({**self.model_dump(), **changes}, self.name)


def check_together(blocks: Sequence[BlockSpec], d_model: int, skip: bool) -> None:
    """`ValueError` that names the block where blocks cannot be in one model: values that they leave for later layers
    differ in shape, or with `embedding.skip` widths do.
    """
    left: dict[str, tuple[int, tuple[int, ...]]] = {}
    for index, block in enumerate(blocks):
        width = block.width or d_model
        if skip and width != d_model:
            raise ValueError(
                f"blocks[{index}].width: {width}: must be {d_model}, that of the embedding, with embedding.skip"
            )
        for name, part in (("mixer", block.mixer), ("feed_forward", block.feed_forward)):
            for field, shape in {} if part is None else part.leaves(width).items():
                before, known = left.setdefault(field, (index, shape))
                if shape != known:
                    said = " x ".join(map(str, shape)), " x ".join(map(str, known))
                    raise ValueError(
                        f"blocks[{index}].{name}.{field}: values of {said[0]} (heads x width): must be of {said[1]}, as"
                        f" those of blocks[{before}]"
                    )


def _with_operator(data: dict[str, Any]) -> dict[str, Any]:
    """The plain description with its `operator` said where it belongs: in the mixers and the starting values."""
    data = copy.deepcopy(data)
    operator = data.pop("operator")
    if not isinstance(operator, str):
        raise ValueError(f"operator: {operator!r}: must be learned, identity, random, or a file of operators")
    blocks = data.get("blocks")
    found = False
    for block in blocks if isinstance(blocks, list) else []:
        mixer = block.get("mixer") if isinstance(block, dict) else None
        if isinstance(mixer, dict) and mixer.get("kind") in MIXERS:
            changed = MIXERS[mixer["kind"]].with_operator(mixer, operator)
            block["mixer"], found = changed or mixer, found or changed is not None
    if not found:
        raise ValueError(f"operator: {operator}: goes with {kinds_with_operators()} layers; the model has none")
    start = "identity" if operator == "learned" else operator
    data["initialisation"] = {**(data.get("initialisation") or {}), "operator": start}
    return data


def operator_file(source: str) -> Path | None:
    """The file that a source of operators names; None where it names none, as `identity` and `random` do."""
    return Path(source) if source.endswith(operator_files().suffixes) else None


def preset_names() -> list[str]:
    """The names of the presets that come with linnet."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))
