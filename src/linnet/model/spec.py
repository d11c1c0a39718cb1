"""The typed description of a model: everything that a decoder, or an encoder with one, can be; where it is found.

A model folder is `config.json` (the description), `model.safetensors` (the weights), `tokenizer.json` and `run.json`
(how it was made). The folder of a training run has one in `model/`.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PositiveFloat, ValidationError, model_validator

from linnet.core.checksum import check_files
from linnet.core.errors import UserError, did_you_mean
from linnet.core.files import read_json
from linnet.core.migration import upgrade_model
from linnet.core.spec import Amount, Count, Extent, Spec, Vocabulary, read_yaml
from linnet.layers.contract import SublayerSpec
from linnet.layers.cross_attention import CrossAttentionSpec
from linnet.layers.registry import (
    MIXERS,
    AnyFeedForward,
    AnyMixer,
    kinds_with_calibration,
    kinds_with_prefixes,
)
from linnet.nn.norms import BlockNormSpec, NormSpec

PRESETS = Path(__file__).parent / "presets"

CONFIG, WEIGHTS, TOKENIZER, RUN = "config.json", "model.safetensors", "tokenizer.json", "run.json"

NGRAM = "ngram.json"
"""Says what the folder of an n-gram model holds, which is none of these."""

MODEL, RUNS = "model", "runs"
"""The model folder in that of a run; the runs in the folder of a comparison."""


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
    """`repeat` equal layers: a mixer and a feed-forward, each on a residual branch with a normalization.

    `residual`: the feed-forward reads what the mixer has left (`sequential`), or both read the same and are added at
    once (`parallel`: GPT-NeoX; with `placement: pre`). `width` differs from the model's where given (a projection
    appears where it changes); `share_weights` makes the repeated layers one set of weights. `cross_attention`: a branch
    between the two, which reads what the model's encoder made of the input.
    """

    repeat: Count = 1
    mixer: AnyMixer
    cross_attention: CrossAttentionSpec | None = None
    feed_forward: AnyFeedForward | None = None
    norm: BlockNormSpec = BlockNormSpec()
    residual: Literal["sequential", "parallel"] = "sequential"
    width: Extent | None = None
    share_weights: bool = False

    @model_validator(mode="after")
    def _parallel_branches_are_normalized_first(self) -> Self:
        if self.residual == "parallel" and self.norm.placement != "pre":
            raise ValueError(f"residual: parallel: goes with norm.placement: pre, not {self.norm.placement}")
        if self.residual == "parallel" and self.cross_attention is not None:
            raise ValueError("residual: parallel: goes without cross_attention, which reads what the mixer has left")
        return self

    @property
    def parts(self) -> dict[str, SublayerSpec]:
        """What stands on its branches, by field."""
        named = {"mixer": self.mixer, "cross_attention": self.cross_attention, "feed_forward": self.feed_forward}
        return {name: part for name, part in named.items() if part is not None}


class EncoderSpec(Spec):
    """What reads the input of an encoder-decoder: blocks of its own, in which each token sees the whole input.

    It has the decoder's embedding. What comes from `blocks`, of the model's `d_model`, is normalized where `norm` says
    so, and read by the decoder's `cross_attention`.
    """

    blocks: list[BlockSpec] = Field(min_length=1)
    norm: NormSpec | None = None

    @property
    def layers(self) -> int:
        """How many layers a token of the input passes."""
        return sum(block.repeat for block in self.blocks)


class HeadSpec(Spec):
    """From the last layer to logits: an optional normalization, then the embedding's own matrix (`tied`) or another.

    scale: what is read is divided by the root of `d_model` (T5, whose token vectors are not small).
    soft_cap: what logits come near to and never pass, `soft_cap tanh(logits / soft_cap)` (Gemma 2: 30); null for none.
    """

    tied: bool = True
    bias: bool = False
    norm: NormSpec | None = None
    scale: bool = False
    soft_cap: PositiveFloat | None = None

    @model_validator(mode="after")
    def _no_bias_when_tied(self) -> Self:
        if self.tied and self.bias:
            raise ValueError("bias: True: a tied head has no bias; use tied: false or bias: false")
        return self


class InitializationSpec(Spec):
    """Starting values. Biases are 0, norms 1; what a mixer holds beside linear layers it initializes itself.

    linear: `normal` with `std`, or `xavier_uniform` (each map of a fused layer by its own shape). Projections where the
        width changes are always the latter: they stand in the residual stream, whose size they keep.
    embedding_std: standard deviation of token and position embeddings.
    scale_residual: divide the std of each branch's last map by `sqrt(2 * layers)` (GPT-2).
    zero_outputs: each branch's last map at 0, its bias too, so that every layer begins as if it were not there; that of
        `scale_residual` is 0 as well.
    calibration: of layers that store one, its source: a name that their kind knows, or a file.
    """

    linear: Literal["normal", "xavier_uniform"] = "normal"
    std: PositiveFloat = 0.02
    embedding_std: PositiveFloat = 0.02
    scale_residual: bool = False
    zero_outputs: bool = False
    calibration: str = "identity"

    @property
    def calibration_file(self) -> Path | None:
        """The file that calibrations come from; None for a name."""
        return calibration_file(self.calibration)


class ModelSpec(Spec):
    """A whole decoder, or an encoder and a decoder.

    prefix: a stream may begin with a prefix whose tokens see all of one another: the input of a pair, in training and
    when text is generated. `calibration: text | NAME | FILE` is accepted too, for all layers that calibrate: on the
    text that they read, or stored, from a name that their kind knows or a file.
    """

    name: str = "model"
    vocab_size: Vocabulary
    d_model: Extent
    context_length: Amount
    embedding: EmbeddingSpec = EmbeddingSpec()
    blocks: list[BlockSpec] = Field(min_length=1)
    encoder: EncoderSpec | None = None
    prefix: bool = False
    head: HeadSpec = HeadSpec()
    initialization: InitializationSpec = InitializationSpec()

    @model_validator(mode="before")
    @classmethod
    def _one_calibration_for_all(cls, data: Any) -> Any:
        return _with_calibration(data) if isinstance(data, dict) and data.get("calibration") is not None else data

    @model_validator(mode="after")
    def _sublayers_fit_widths(self) -> Self:
        for where, block in self._placed():
            for name, part in block.parts.items():
                try:
                    part.check(block.width or self.d_model)
                except ValueError as error:
                    raise ValueError(f"{where}.{name}.{error}") from None
        return self

    @model_validator(mode="after")
    def _blocks_fit_each_other(self) -> Self:
        check_together(self.blocks, self.d_model, self.embedding.skip)
        if self.encoder is not None:
            check_together(self.encoder.blocks, self.d_model, self.embedding.skip, "encoder.blocks")
        return self

    @model_validator(mode="after")
    def _the_decoder_reads_the_encoder(self) -> Self:
        reading = [where for where, block in self._placed() if block.cross_attention is not None]
        if self.encoder is None and reading:
            raise ValueError(f"{reading[0]}.cross_attention: reads an encoder; the model has none (encoder)")
        if self.encoder is not None and not any(block.cross_attention for block in self.blocks):
            raise ValueError("encoder: no block reads it; expected cross_attention in blocks")
        if self.encoder is not None and any(where.startswith("encoder") for where in reading):
            raise ValueError(f"{reading[-1]}.cross_attention: goes with blocks of the decoder")
        return self

    @model_validator(mode="after")
    def _prefixes_are_seen(self) -> Self:
        if self.prefix and self.encoder is not None:
            raise ValueError("prefix: True: goes without an encoder, which reads the input already")
        for where, block in self._placed():
            if (self.prefix or where.startswith("encoder")) and not block.mixer.supports_prefix:
                own, taken = block.mixer.prefix_conflict, f"{kinds_with_prefixes()} that sees both ways"
                why = f"; here {own}" if own else ""
                raise ValueError(
                    f"{where}.mixer: {block.mixer.kind}: sees the past alone; an encoder, or a model with prefix: true,"
                    f" takes {taken}{why}"
                )
        return self

    def _placed(self) -> list[tuple[str, BlockSpec]]:
        """All blocks, and where they stand."""
        own = [(f"blocks[{index}]", block) for index, block in enumerate(self.blocks)]
        inner = [] if self.encoder is None else self.encoder.blocks
        return own + [(f"encoder.blocks[{index}]", block) for index, block in enumerate(inner)]

    @model_validator(mode="after")
    def _a_calibration_goes_with_layers_that_store_one(self) -> Self:
        source = self.initialization.calibration
        if source != "identity" and not any(block.mixer.calibration == "stored" for block in self.blocks):
            kinds = kinds_with_calibration()
            raise ValueError(
                f"initialization.calibration: {source}: expected a {kinds} block that stores a calibration"
            )
        return self

    @property
    def layers(self) -> int:
        """How many layers a token passes."""
        return sum(block.repeat for block in self.blocks)

    @property
    def memory_width(self) -> int:
        """Of what an encoder hands over; 0 where there is none."""
        return 0 if self.encoder is None else self.d_model

    @property
    def prefix_field(self) -> str | None:
        """The field because of which the model reads the first part of a row, its prefix, as a whole; None: no field.

        Such a model needs examples with prefixes (pairs), in training and in evaluation.
        """
        if self.encoder is not None:
            return "model.encoder"
        return "model.prefix: true" if self.prefix else None

    @property
    def layer_kinds(self) -> list[str]:
        """The mixer of each layer, by kind."""
        return [block.mixer.kind for block in self.blocks for _ in range(block.repeat)]

    @classmethod
    def load(cls, source: str | Path) -> "ModelSpec":
        """A model's description from a preset's name, a YAML file, or a model folder."""
        return cls.parse(read_description(source), str(source))

    def replace(self, **changes: Any) -> "ModelSpec":
        """A validated copy with some fields changed."""
        return ModelSpec.parse({**self.model_dump(), **changes}, self.name)


def check_together(blocks: Sequence[BlockSpec], d_model: int, skip: bool, where: str = "blocks") -> None:
    """`ValueError` that names the block where blocks cannot be in one model: values that they leave for later layers
    differ in shape, or with `embedding.skip` widths do.
    """
    left: dict[str, tuple[int, tuple[int, ...]]] = {}
    for index, block in enumerate(blocks):
        width = block.width or d_model
        if skip and width != d_model:
            raise ValueError(
                f"{where}[{index}].width: {width}: must be {d_model}, that of the embedding, with embedding.skip"
            )
        for name, part in block.parts.items():
            for field, shape in part.cross_layer_values(width).items():
                before, known = left.setdefault(field, (index, shape))
                if shape != known:
                    said = " x ".join(map(str, shape)), " x ".join(map(str, known))
                    raise ValueError(
                        f"{where}[{index}].{name}.{field}: values of {said[0]} (heads x width): must be of {said[1]},"
                        f" as those of {where}[{before}]"
                    )


def _with_calibration(data: dict[str, Any]) -> dict[str, Any]:
    """The plain description with its `calibration` moved to where it belongs: the mixers and the starting values."""
    data = copy.deepcopy(data)
    calibration = data.pop("calibration")
    if not isinstance(calibration, str):
        raise ValueError(f"calibration: {calibration!r}: must be text, a name that the kind of layer knows, or a file")
    where: Literal["text", "stored"] = "text" if calibration == "text" else "stored"
    blocks, found = data.get("blocks"), False
    for block in blocks if isinstance(blocks, list) else []:
        mixer = block.get("mixer") if isinstance(block, dict) else None
        if not isinstance(mixer, dict) or mixer.get("kind") not in MIXERS:
            continue
        try:
            described = MIXERS[mixer["kind"]].model_validate(mixer)
        except ValidationError:
            continue  # reported when the whole description is validated
        if described.calibration != "none":
            block["mixer"], found = described.with_calibration(where).model_dump(), True
    if not found:
        raise ValueError(f"calibration: {calibration}: goes with {kinds_with_calibration()} layers; the model has none")
    start = "identity" if where == "text" else calibration
    data["initialization"] = {**(data.get("initialization") or {}), "calibration": start}
    return data


def calibration_file(source: str) -> Path | None:
    """The file that a source of calibrations names; None for a name that the kind of layer knows."""
    return Path(source) if Path(source).suffix else None


def preset_names() -> list[str]:
    """The names of the presets that come with linnet."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def find_model_folder(path: Path) -> Path | None:
    """The model folder that `path` is, or that the run folder `path` has; None where there is neither."""
    return next((folder for folder in (path, path / MODEL) if (folder / CONFIG).is_file()), None)


def model_folder(source: str | Path) -> Path:
    """The model folder itself, or the one in a run folder; `UserError` where there is none, with where it may be."""
    path = Path(source)
    folder = find_model_folder(path)
    if folder is not None:
        check_files(folder, (CONFIG, TOKENIZER, RUN))
        return folder
    if not path.exists() and str(source) in preset_names():
        making = f"linnet train --model {source} --data DIR --out runs/{source}"
        raise UserError(f"{source}: a preset, a description without weights; `{making}` trains it")
    if not path.is_dir():
        raise UserError(f"{source}: no such folder; expected a model folder or the folder of a training run")
    runs = sorted(str(run) for run in path.glob(f"{RUNS}/*") if find_model_folder(run))
    if runs:
        raise UserError(f"{source}: the folder of a comparison; expected one of its runs, as {runs[0]}")
    if (path / NGRAM).is_file():
        verbs = f"`linnet ngram evaluate {source} --data DIR`, or `linnet ngram generate {source}`"
        raise UserError(f"{source}: an n-gram model, which counts alone; expected {verbs}")
    raise UserError(f"{source}: neither a model folder nor a run folder with one (no {CONFIG})")


def read_description(source: str | Path) -> dict[str, Any]:
    """The plain data behind a preset's name, a YAML or JSON file, a model folder, or a run folder with one.

    Raises `UserError` where there is no such thing, or it holds no mapping.
    """
    preset = PRESETS / f"{source}.yaml"
    path = preset if preset.parent == PRESETS and preset.is_file() else Path(source)
    if path.is_dir():
        path = model_folder(source) / CONFIG
    if not path.exists():
        instead = did_you_mean(str(source), preset_names(), f"presets: {', '.join(preset_names())}")
        raise UserError(f"{source}: no such file, and no preset of that name; {instead}")
    data = upgrade_model(read_json(path), str(path)) if path.suffix == ".json" else read_yaml(path)
    if not isinstance(data, dict):
        kind = "nothing" if data is None else type(data).__name__
        raise UserError(f"{source}: expected a mapping (name, vocab_size, d_model, …), found {kind}")
    return data
