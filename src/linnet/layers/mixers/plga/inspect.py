"""What power-law graph attention brings to `linnet inspect`: its deductive outputs, how they vary, and its caches.

Shapes: `H` heads, `K` head width, `N` prompts, `T` tokens of a prompt.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.core.spec import Seed, Spec
from linnet.layers.cache_policy import FULL, CachePolicy, RecalibratingCache
from linnet.layers.inspection import InspectedModel, Inspection, InspectionTarget
from linnet.layers.mixers.plga.criticality import CRITICALITY, deduces
from linnet.layers.mixers.plga.files import SUFFIXES, read_operators, save_operators
from linnet.layers.mixers.plga.matrices import (
    DeductiveFigures,
    OutputFigures,
    operator_figures,
    power_of_ten,
)
from linnet.layers.mixers.plga.module import Plga
from linnet.layers.mixers.plga.operator import OUTPUTS
from linnet.present import numbers
from linnet.present.plot import COLOR_PERCENTILE, Axis, HeatMaps, Panel, Plot, Series
from linnet.present.progress import Advance, progress
from linnet.present.result import Picture, Result
from linnet.present.table import Table

DIGITS, ALL_DIGITS = 6, 15
SEEN = {
    "A": "Paper: rank one, all rows equal, so it shows vertical stripes and nothing else.",
    "A_LM": "Never negative. Paper: singular.",
    "A_P": "The powers of A_LM: never negative, 1 where the power is 0.",
    "G": "The operator between query and key. The identity, a bare diagonal, would be plain attention.",
}
SETTINGS: tuple[tuple[bool, CachePolicy], ...] = (
    (True, FULL),
    (True, RecalibratingCache()),
    (False, FULL),
    (False, RecalibratingCache()),
)
"""KV-cache and G-cache, both on first: the others are compared with these."""

Deduced = dict[tuple[str, int], Tensor]
"""Deductive outputs by their names and the numbers of their layers."""

Operators = list[dict[str, Tensor]]
"""The deductive outputs of each plga layer, `[H, K, K]` by name, the operator last; it alone if it is fixed."""


def check_has_operator(model: InspectedModel, name: str) -> None:
    """`UserError` with the name of the model if no layer has an operator."""
    if not any(isinstance(mixer, Plga) for mixer in model.mixers):
        kinds = ", ".join(dict.fromkeys(model.kinds))
        raise UserError(f"{name}: has no operator: its token mixer is {kinds}; expected a model with plga")


def operators_from(outputs: Iterable[Mapping[str, Tensor]]) -> Operators:
    """The deductive outputs of one text among the auxiliary outputs of all layers."""
    found = ({name: x_1HKK[0] for name, x_1HKK in layer.items() if name in OUTPUTS} for layer in outputs)
    return [layer for layer in found if layer]


def operators(model: InspectedModel, tokens_1T: Tensor) -> Operators:
    """What the layers deduce from one text, and fixed operators."""
    return operators_from(model.auxiliary_outputs(tokens_1T))


@dataclass(frozen=True)
class LoadedOperators:
    """The operators of a model or a file. `origin`: in words. `prompt`: what they were deduced from, or None."""

    layers: Operators
    origin: str
    in_file: bool = False
    prompt: str | None = None
    prompt_tokens: int | None = None

    @property
    def shape(self) -> str:
        """In words: `5 layers, 14 heads of 64 x 64`."""
        shapes = dict.fromkeys(tuple(layer["G"].shape[:2]) for layer in self.layers)
        heads = " and ".join(f"{count} head{'s' * (count > 1)} of {width} x {width}" for count, width in shapes)
        return f"{len(self.layers)} layer{'s' * (len(self.layers) > 1)}, {heads}"


def load_operators(target: InspectionTarget, prompt: str | None = None) -> LoadedOperators:
    """Read a file of operators, or let a model deduce its own from a prompt, by default the end token alone.

    `UserError` if the target is neither, has no operator, or a prompt is given and nothing is deduced.
    """
    source = Path(target.source)
    if source.is_file() or source.suffix in SUFFIXES:
        if prompt is not None:
            problem = f"{source} is a file, its operators are not deduced from a text"
            raise UserError(problem, field="prompt", value=repr(prompt))
        return LoadedOperators(read_operators(source), "as the file has them", in_file=True)
    model = target.model()
    check_has_operator(model, str(source))
    if deduces(model):
        tokens = model.prompt_tokens(prompt or "")
        model.check_positions(len(tokens), "prompt")
        origin = f"deduced from {prompt!r}" if prompt else "deduced from the empty prompt, the end token alone"
        found = operators(model, torch.tensor([tokens]))
        return LoadedOperators(found, origin, prompt=prompt or "", prompt_tokens=len(tokens))
    if prompt is not None:
        problem = f"the operators of {source} are fixed, not deduced from a text"
        raise UserError(problem, field="prompt", value=repr(prompt))
    return LoadedOperators(operators(model, torch.tensor([model.prompt_tokens("")])), "fixed in the model")


class OperatorOptions(Spec):
    """Options of `linnet inspect operator`."""

    prompt: str | None = Field(None, description="Deduce the operators from this text; by default the end token.")
    save: Path | None = Field(None, description="Save the model's operators into this file, as .safetensors.")
    rank_tolerance: float | None = Field(
        None,
        ge=0,
        description="Count singular values above this share of the largest; by default the rounding.",
    )


@dataclass(frozen=True)
class OperatorResult(Result):
    """The deductive outputs of a model or a file."""

    source: str
    found: LoadedOperators
    figures: DeductiveFigures

    def title(self) -> str:
        return f"Operators of {self.source}"

    def facts(self) -> dict[str, str]:
        return {"operators": f"{self.found.shape}; {self.found.origin}"}

    def tables(self) -> list[Table]:
        return operator_tables(self.figures)

    def plots(self) -> list[Picture]:
        return operator_pictures(self.figures, self.found.layers)

    def to_dict(self) -> dict[str, Any]:
        read = {"source": self.source, "prompt": self.found.prompt, "prompt_tokens": self.found.prompt_tokens}
        return read | self.figures.figures()


def inspect_operator(target: InspectionTarget, options: OperatorOptions) -> OperatorResult:
    """The deductive outputs, and a file of them if it is asked for."""
    if options.save is not None and options.save.suffix != ".safetensors":
        raise UserError("expected a name that ends in .safetensors", field="save", value=options.save)
    found = load_operators(target, options.prompt)
    if options.save is not None:
        if found.in_file:
            problem = f"{target.source} is a file of operators already; expected a model"
            raise UserError(problem, field="save", value=options.save)
        save_operators(found.layers, options.save)
    return OperatorResult(target.source, found, operator_figures(found.layers, options.rank_tolerance))


def number(value: float | None, missing: str = "none", digits: int = DIGITS) -> str:
    """So many significant digits; `missing` for what there is not, words for what is not finite."""
    if value is None:
        return missing
    return f"{value:.{digits}g}" if math.isfinite(value) else "not finite" if math.isnan(value) else "infinite"


def determinant(log10: float, digits: int = DIGITS) -> str:
    """A |det| by its logarithm: a number where it is one, else the power of ten that it over- or underflows as."""
    if math.isnan(log10):
        return "not finite"
    value = power_of_ten(log10)
    if value is None:
        return f"overflow, 10^{log10:.{digits}g}"
    return f"{value:.{digits}g}" if value > 0 or log10 == -math.inf else f"underflow, 10^{log10:.{digits}g}"


def operator_tables(found: DeductiveFigures) -> list[Table]:
    """All outputs together; then A, the singular values of A_LM, where there are these."""
    outputs = {one.name: one for one in found.outputs}
    tables = [_outputs_table(found)]
    if "A" in outputs:
        tables.append(_rank_one_table(outputs["A"]))
    if "A_LM" in outputs:
        tables.append(_singular_table(outputs["A_LM"]))
    return tables


def _outputs_table(found: DeductiveFigures) -> Table:
    rows: list[Sequence[str]] = []
    for one in found.outputs:
        ranks = [rank for layer in one.layers for rank in layer.ranks]
        rows.append((one.name, number(one.rmse, "one head"), determinant(one.determinant.log10), _span(ranks)))
        for layer in one.layers:
            rmse, log10 = layer.between_heads.rmse, layer.determinant.log10
            rows.append((f"  layer {layer.layer}", number(rmse, "one head"), determinant(log10), _span(layer.ranks)))
    return Table(
        "Deductive outputs",
        ("", "RMSE between heads", "largest |det|", "rank"),
        rows,
        "RMSE: how much the heads of a layer differ. Determinants in float64. Rank: singular values above"
        f" {found.rank_tolerance:.2g} of the largest, over the heads. Paper: A is rank one, A_LM is singular.",
    )


def _rank_one_table(a: OutputFigures) -> Table:
    rows = []
    for layer in a.layers:
        assert layer.eigen is not None
        radii = layer.eigen.radii
        head = max(range(len(radii)), key=lambda i: -math.inf if math.isnan(radii[i]) else radii[i])
        value = layer.eigen.eigenvalues[head]
        said = number(value.real) if value.imag == 0 else f"{number(value.real)} ± {number(abs(value.imag))}i"
        sums = number(layer.eigen.row_sums[head]), number(layer.eigen.between_rows.rmse)
        rows.append((f"layer {layer.layer}, head {head}", number(radii[head]), said, *sums))
    return Table(
        "A: is it rank one?",
        ("", "spectral radius", "largest eigenvalue", "mean row sum", "RMSE between rows, all heads"),
        rows,
        "The head of largest spectral radius in each layer. Paper: all rows of A are equal up to about 1e-9, so its"
        " one eigenvalue that is not zero is close to its row sum.",
    )


def _singular_table(a_lm: OutputFigures) -> Table:
    rows = [(f"layer {layer.layer}", *map(number, layer.singular_ends)) for layer in a_lm.layers]
    return Table(
        "A_LM: singular values",
        ("", "largest", "smallest", "condition number"),
        rows,
        "Over the heads of a layer; the condition number is the worst head's. Paper: A_LM is singular. The JSON has all"
        " of them.",
    )


def operator_pictures(found: DeductiveFigures, layers: Operators) -> list[Picture]:
    """A heat map of each deductive output, and the singular values of A_LM."""
    scale = (
        f"A row for each layer, with its own scale; {100 - COLOR_PERCENTILE:g} % of the elements are beyond its end."
    )
    pictures = []
    for name in OUTPUTS:
        having = {n: layer[name].double().cpu().numpy() for n, layer in enumerate(layers) if name in layer}
        if having:
            widths = " and ".join(f"{width} x {width}" for width in sorted({x.shape[1] for x in having.values()}))
            title = f"{name} of every head, {widths}"
            pictures.append(Picture(name, title, HeatMaps(having), f"{SEEN[name]} {scale}"))
    for one in found.outputs:
        if one.name == "A_LM":
            curves = singular_values({layer.layer: layer.singular_HK for layer in one.layers})
            caption = (
                "A line for each head. A matrix is singular where its line ends in a cliff: the last values are"
                " nothing but rounding."
            )
            pictures.append(Picture("singular_values", "Singular values of A_LM", curves, caption))
    return pictures


def singular_values(singular_LHK: Mapping[int, Sequence[Sequence[float]]]) -> Plot:
    """Singular values `[H, K]`, descending, of each layer by its number: a panel for a layer, a line for a head."""
    x, y = Axis("singular value, largest first"), Axis("", "log", numbers.scientific)
    panels = [
        Panel(x, y, [_positive(range(1, len(values) + 1), values, head) for head, values in enumerate(heads)], title)
        for title, heads in ((f"layer {number}", heads) for number, heads in singular_LHK.items())
    ]
    return Plot(panels, (4.4, 3.2), columns=min(3, len(panels)), shared="y")


@dataclass(frozen=True)
class Variation:
    """Over prompts, `||X - mean|| / ||mean||`, Frobenius norms: the root mean square and the largest."""

    rms: float
    largest: float

    def figures(self) -> dict[str, Any]:
        return dict(json_safe({"variation": self.rms, "largest": self.largest}))


@dataclass(frozen=True)
class OutputVariation:
    """One deductive output: over all layers together, and of each layer that has it, by its number."""

    name: str
    overall: Variation
    layers: dict[int, Variation]

    def figures(self) -> dict[str, Any]:
        per_layer = [{"layer": layer, **variation.figures()} for layer, variation in self.layers.items()]
        return {**self.overall.figures(), "per_layer": per_layer}


class InvarianceOptions(Spec):
    """Options of `linnet inspect invariance`."""

    prompts: Annotated[int, Field(ge=2)] = Field(100, description="Documents to draw, or all that are long enough.")
    tokens: Annotated[int, Field(ge=2)] = Field(
        64, description="Tokens of each document, the end token before it included."
    )
    seed: Seed = Field(0, description="Decides which documents are drawn.")


@dataclass(frozen=True)
class Invariance(Result):
    """How much each deductive output varies over so many prompts of so many tokens."""

    prompts: int
    tokens: int
    outputs: list[OutputVariation]
    model: str = ""
    data: str = ""
    split: str = ""
    seed: int = 0

    def title(self) -> str:
        return f"Invariance of {self.model}"

    def facts(self) -> dict[str, str]:
        return {"text": f"documents of the {self.split} split of {self.data}, drawn with seed {self.seed}"}

    def tables(self) -> list[Table]:
        return invariance_tables(self)

    def plots(self) -> list[Picture]:
        return invariance_pictures(self)

    def figures(self) -> dict[str, Any]:
        named = {one.name: one.figures() for one in self.outputs}
        return {"prompts": self.prompts, "tokens": self.tokens, **named}

    def to_dict(self) -> dict[str, Any]:
        read = {"model": self.model, "data": self.data, "split": self.split, "seed": self.seed}
        return read | self.figures()


def inspect_invariance(target: InspectionTarget, options: InvarianceOptions) -> Invariance:
    """Measure a model over the beginnings of documents; `UserError` if it deduces no operator."""
    model = target.model()
    check_has_operator(model, target.source)
    if not deduces(model):
        problem = "its operators are fixed, they do not vary; expected a model that deduces them"
        raise UserError(f"{target.source}: {problem}")
    model.check_positions(options.tokens, "tokens")
    found = invariance(model, model.documents(options.prompts, options.tokens, options.seed))
    return replace(found, model=target.source, data=str(target.data), split=target.split, seed=options.seed)


def invariance(model: InspectedModel, prompts_NT: Tensor) -> Invariance:
    """The variation over prompts `[N, T]`, in float64; of fixed operators there is none.

    The prompts are read twice, for the mean and for what differs from it, so that memory does not grow with them; one
    at a time, so that the same prompt gives the same operator to the bit.
    """
    with progress("deducing operators", 2 * len(prompts_NT), "prompts") as advance:

        def read() -> Iterator[Deduced]:
            for prompt_T in prompts_NT:
                yield _deduced(operators(model, prompt_T[None]))
                advance(1)

        means = _means(read(), len(prompts_NT))
        distances = [{key: float((x - means[key]).square().sum()) for key, x in found.items()} for found in read()]
    sizes = {key: float(mean.square().sum()) for key, mean in means.items()}
    outputs = [_output(name, distances, sizes) for name in dict.fromkeys(name for name, _ in means)]
    return Invariance(len(prompts_NT), prompts_NT.shape[1], outputs)


def _deduced(layers: Operators) -> Deduced:
    """In float64; nothing of a layer that has only its fixed `G`."""
    having = [(number, layer) for number, layer in enumerate(layers) if len(layer) > 1]
    return {(name, number): x_HKK.double() for number, layer in having for name, x_HKK in layer.items()}


def _means(found: Iterator[Deduced], count: int) -> Deduced:
    """The mean of each output, as the first one and what the others differ by: exact where none differs."""
    first = next(found)
    sums = {key: torch.zeros_like(x_HKK) for key, x_HKK in first.items()}
    for outputs in found:
        for key, x_HKK in outputs.items():
            sums[key] += x_HKK - first[key]
    return {key: x_HKK + sums[key] / count for key, x_HKK in first.items()}


def _output(
    name: str, distances: list[dict[tuple[str, int], float]], sizes: dict[tuple[str, int], float]
) -> OutputVariation:
    """From the squared distances of each prompt's outputs, and the squared sizes of their means."""
    of_layer = {key: [of_prompt[key] for of_prompt in distances] for key in sizes if key[0] == name}
    together = [sum(of_prompt) for of_prompt in zip(*of_layer.values(), strict=True)]
    layers = {key[1]: _variation(squares, sizes[key]) for key, squares in of_layer.items()}
    return OutputVariation(name, _variation(together, sum(sizes[key] for key in of_layer)), layers)


def _variation(squared_distances: list[float], squared_size: float) -> Variation:
    if squared_size == 0 or not math.isfinite(sum(squared_distances)):
        return Variation(math.nan, math.nan)
    mean = sum(squared_distances) / len(squared_distances)
    return Variation(math.sqrt(mean / squared_size), math.sqrt(max(squared_distances) / squared_size))


def invariance_tables(found: Invariance) -> list[Table]:
    """The variation of each output over all layers, and of each layer."""
    rows: list[Sequence[str]] = []
    for one in found.outputs:
        rows.append((one.name, *_variation_cells(one.overall)))
        rows += [(f"  layer {layer}", *_variation_cells(variation)) for layer, variation in one.layers.items()]
    return [
        Table(
            "Variation over prompts",
            ("", "RMS", "largest"),
            rows,
            f"||X - mean|| / ||mean|| over {found.prompts} prompts of {found.tokens} tokens (Frobenius norms). Paper:"
            " the operator of a trained model hardly depends on the text. 0: not at all.",
        )
    ]


def _variation_cells(variation: Variation) -> tuple[str, str]:
    return number(variation.rms), number(variation.largest)


def invariance_pictures(found: Invariance) -> list[Picture]:
    """The variation of each output in each layer."""
    variation = {one.name: {layer: of.rms for layer, of in one.layers.items()} for one in found.outputs}
    caption = (
        "RMS over the prompts, in terms of the mean's size; logarithmic. The lower, the less the operator depends"
        " on the text. No point: it does not vary at all."
    )
    return [Picture("variation", "Variation of each layer", variation_points(variation), caption)]


def variation_points(variation: Mapping[str, Mapping[int, float]]) -> Plot:
    """The variation of each deductive output, by name and number of the layer; none where it is 0."""
    layers = sorted({number for by_layer in variation.values() for number in by_layer})
    drawn = [
        _positive(list(by_layer), list(by_layer.values()), number, name, "o-")
        for number, (name, by_layer) in enumerate(variation.items())
    ]
    x = Axis("layer", places={number: str(number) for number in layers})
    y = Axis("variation over the prompts, RMS", "log", numbers.scientific)
    return Plot([Panel(x, y, drawn)], (max(6.0, 0.4 * len(layers) + 3), 4.4))


def _positive(x: Sequence[int], y: Sequence[float], color: int, name: str = "", style: str = "-") -> Series:
    """Without what has no place on a logarithmic axis."""
    return Series(x, [value if value > 0 else math.nan for value in y], name, style, color)


@dataclass(frozen=True)
class CacheRun:
    """What one setting gave. `ids`: the tokens of the continuation; `first_difference`: the first that is another.

    `distances`: of each deductive output from that with both caches, by name, relative to its size (Frobenius norms).
    """

    kv_cache: bool
    g_cache: bool
    ids: list[int]
    text: str
    first_difference: int | None
    outputs: list[OutputFigures]
    distances: dict[str, float]

    @property
    def label(self) -> str:
        """Which caches are on: `KV and G`, `KV`, `G`, `none`."""
        return " and ".join(name for name, on in (("KV", self.kv_cache), ("G", self.g_cache)) if on) or "none"

    def figures(self) -> dict[str, Any]:
        named = {
            one.name: {"rmse": one.rmse, **one.determinant.figures(), "distance": self.distances[one.name]}
            for one in self.outputs
        }
        return {
            "kv_cache": self.kv_cache,
            "g_cache": self.g_cache,
            "tokens": len(self.ids),
            "same_text": self.first_difference is None,
            "first_difference": self.first_difference,
            "text": self.text,
            **json_safe(named),
        }


@dataclass(frozen=True)
class CacheComparison(Result):
    """The four settings, that with both caches first."""

    prompt: str
    prompt_tokens: int
    max_tokens: int
    runs: list[CacheRun]
    model: str = ""

    def title(self) -> str:
        return f"Caches of {self.model}"

    def facts(self) -> dict[str, str]:
        return {"prompt": repr(self.prompt) if self.prompt else "the empty prompt"}

    def tables(self) -> list[Table]:
        return caches_tables(self)

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model, **self.figures()}

    def figures(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "prompt_tokens": self.prompt_tokens,
            "max_tokens": self.max_tokens,
            "same_text": all(run.first_difference is None for run in self.runs),
            "settings": [run.figures() for run in self.runs],
        }


class CachesOptions(Spec):
    """Options of `linnet inspect caches`."""

    prompt: str = Field("", description="The text to continue.")
    tokens: Annotated[int, Field(ge=1, le=1 << 14)] = Field(
        100, description="Stop after so many tokens, if the text has not ended."
    )


def inspect_caches(target: InspectionTarget, options: CachesOptions) -> CacheComparison:
    """Compare the four settings; `UserError` if the model deduces no operator."""
    model = target.model()
    check_has_operator(model, target.source)
    if not deduces(model):
        problem = "its operators are fixed, none is inferred; expected a model that deduces them"
        raise UserError(f"{target.source}: {problem}")
    return replace(compare_caches(model, options.prompt, options.tokens), model=target.source)


def compare_caches(model: InspectedModel, prompt: str, max_tokens: int) -> CacheComparison:
    """Continue the prompt with each setting by up to `max_tokens` tokens, always by the likeliest.

    Compared is what the operators were deduced from last: the prompt if the G-cache keeps them, or the KV-cache the
    prompt's A; the whole text but its last token if nothing is kept.
    """
    with progress("generating", len(SETTINGS) * max_tokens, "tokens") as advance:
        found = [_continued(model, prompt, max_tokens, *setting, advance) for setting in SETTINGS]
    first_ids, first_layers = found[0]
    runs = [
        CacheRun(
            kv_cache,
            policy == FULL,
            ids,
            model.tokenizer.decode(ids),
            first_difference(first_ids, ids),
            operator_figures(layers).outputs,
            distances(layers, first_layers),
        )
        for (kv_cache, policy), (ids, layers) in zip(SETTINGS, found, strict=True)
    ]
    return CacheComparison(prompt, len(model.prompt_tokens(prompt)), max_tokens, runs)


def _continued(
    model: InspectedModel, prompt: str, max_tokens: int, kv_cache: bool, policy: CachePolicy, advance: Advance
) -> tuple[list[int], Operators]:
    """The tokens of the continuation, and what was deduced last."""
    ids: list[int] = []
    layers: Operators = []
    for token, outputs in model.continue_prompt(prompt, max_tokens, kv_cache, policy):
        if any(len(layer) > 1 for layer in outputs):
            layers = operators_from(outputs)
        if token is not None:
            ids.append(token)
        advance(1)
    return ids, layers


def first_difference(first: Sequence[int], other: Sequence[int]) -> int | None:
    """The number of the first token that differs, or that only one of both has; None for equal texts."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False)))
    return None if same == len(first) == len(other) else same


def distances(layers: Operators, from_layers: Operators) -> dict[str, float]:
    """`||X - Y|| / ||Y||` of each deductive output over all layers; NaN where Y is 0 or not finite."""
    found = {}
    for name in dict.fromkeys(name for layer in layers for name in layer):
        pairs = [(x[name].double(), y[name].double()) for x, y in zip(layers, from_layers, strict=True) if name in x]
        size = sum(float(y.square().sum()) for _, y in pairs)
        difference = sum(float((x - y).square().sum()) for x, y in pairs)
        found[name] = math.sqrt(difference / size) if size > 0 and math.isfinite(difference) else math.nan
    return found


def caches_tables(found: CacheComparison) -> list[Table]:
    """The text of each setting, and the deductive outputs that it ended with, a column for each."""
    return [
        _texts_table(found),
        _outputs_by_setting(
            found,
            "RMSE between heads",
            lambda run, one: number(one.rmse, "one head", ALL_DIGITS),
            "Of the outputs as last deduced: from the text but its last token without any cache, else from the prompt."
            " Paper: the same to about 15 digits.",
        ),
        _outputs_by_setting(
            found,
            "Largest |det|",
            lambda run, one: determinant(one.determinant.log10),
            "In float64. Of a matrix that is nearly singular the determinant is rounding, and not to be compared.",
        ),
        _outputs_by_setting(
            found,
            "Distance",
            lambda run, one: number(run.distances[one.name]),
            "From the outputs with both caches, in terms of their size: how much the operator would change with the"
            " text that has been written.",
        ),
    ]


def _outputs_by_setting(
    found: CacheComparison, title: str, cell: Callable[[CacheRun, OutputFigures], str], meaning: str
) -> Table:
    names = [one.name for one in found.runs[0].outputs]
    rows = [(run.label, *(cell(run, one) for one in run.outputs)) for run in found.runs]
    return Table(title, ("caches", *names), rows, meaning)


def _texts_table(found: CacheComparison) -> Table:
    rows = [
        (
            run.label,
            numbers.grouped(len(run.ids)),
            "the same" if run.first_difference is None else f"another from token {run.first_difference + 1} on",
        )
        for run in found.runs
    ]
    return Table(
        "Text",
        ("caches", "tokens", "text"),
        rows,
        f"The prompt, {found.prompt_tokens} token{'s' * (found.prompt_tokens > 1)} with the end token before it, is"
        f" continued by the likeliest token, at most {found.max_tokens} times. Compared with both caches.",
    )


def _span(ranks: Iterable[int | None]) -> str:
    known = [rank for rank in ranks if rank is not None]
    if not known:
        return "not finite"
    return str(min(known)) if min(known) == max(known) else f"{min(known)} to {max(known)}"


INSPECTIONS = [
    Inspection(
        "operator",
        """Show the matrices that power-law graph attention deduces from a text: A, A_LM, A_P and the operator G.

    Difference between heads, determinants, rank; whether A is rank one; the singular values of A_LM: as the PLDR-LLM
    paper reports them, in float64. A file may hold G alone, under the names 0, 1, ... or layer0.G, layer1.G, ...

    Example: linnet inspect operator runs/pldr --out inspected

    Example: linnet inspect operator runs/pldr --prompt "Once upon a time" --save operator.safetensors

    Example: linnet inspect operator operator.npz --json
    """,
        OperatorOptions,
        inspect_operator,
        source="MODEL|FILE",
        applies=lambda model: any(isinstance(mixer, Plga) for mixer in model.mixers),
    ),
    Inspection(
        "invariance",
        """Measure how much the operator of power-law graph attention varies with the text, relative to its size.

    The paper's claim is that a trained operator hardly depends on its input, so that it can be kept and the net behind
    it left out. Here it is measured: over the beginnings of documents, for each deductive output and layer.

    Example: linnet inspect invariance runs/pldr --data data/stories

    Example: linnet inspect invariance runs/pldr --data data/stories --prompts 20 --tokens 16 --out inspected
    """,
        InvarianceOptions,
        inspect_invariance,
        data="required",
        applies=deduces,
    ),
    Inspection(
        "caches",
        """Compare generation with and without the KV-cache and the G-cache, as the PLDR-LLM paper does.

    The same prompt is continued with each of the four settings, by the likeliest token. Shows whether the text stays
    the same, and the deductive outputs with which each ended.

    Example: linnet inspect caches runs/pldr --prompt "Once upon a time" --tokens 100
    """,
        CachesOptions,
        inspect_caches,
        applies=deduces,
    ),
    CRITICALITY,
]
"""What `linnet inspect` finds here."""
