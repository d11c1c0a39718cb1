"""How long so many tokens take to generate with and without caches; each way is checked before it is timed.

Legend: `N` tokens that are generated, the last of them where it says so; `V` vocabulary.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.system import SCATTER_LIMIT, scatter
from linnet.experiments.demo.measure import describe_machine
from linnet.experiments.protocol.spec import TimesSpec
from linnet.inference.caches import Caches
from linnet.inference.engine import decode, new_state
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.model.decoder import Decoder
from linnet.present.progress import progress
from linnet.present.table import MISSING, Table

SETTINGS = (Caches(False, False), Caches(True, False), Caches(False, True), Caches())
"""Nothing kept first, all last, as the paper has them."""

MOST_BEHIND = 2e-4
"""By which a token that was taken may be less likely than the likeliest, in standard deviations of the logits: float32
in another order of operations."""


@dataclass(frozen=True)
class Contestant:
    """One way of generating the likeliest tokens behind a prompt. `caches`: those that it keeps.

    generate: the N ids. logits_NV: of the last of these (of all, where a text can be read at once), in one pass over
    the text.
    """

    model: str
    parameters: int
    caches: Caches
    generate: Callable[[], list[int]]
    logits_NV: Callable[[list[int]], Tensor]


@dataclass(frozen=True)
class Timed:
    """A contestant's runs, in seconds, in the order of the turns."""

    contestant: Contestant
    runs_s: list[float]

    @property
    def median_s(self) -> float:
        """Of its runs."""
        return median(self.runs_s)

    def times_as_long(self, other: "Timed") -> float:
        """As the other: the median over the turns."""
        return median(own / theirs for own, theirs in zip(self.runs_s, other.runs_s, strict=True))


def draw_prompt(vocab_size: int, spec: TimesSpec) -> list[int]:
    """Random tokens, the same whenever they are drawn: only speed is asked."""
    generator = torch.Generator().manual_seed(spec.seed)
    return torch.randint(vocab_size, (spec.prompt_tokens,), generator=generator).tolist()


def contestants(model: LanguageModel, name: str, spec: TimesSpec) -> list[Contestant]:
    """A model with each setting of the caches that it has; one that does not calibrate has fewer."""
    decoder = model.decoder
    deduces = any(mixer.traits.calibrates for mixer in decoder.mixers)
    settings = SETTINGS if deduces else (Caches(kv=False), Caches())
    prompt = draw_prompt(decoder.spec.vocab_size, spec)
    return [_contestant(decoder, name, prompt, spec.tokens, caches, deduces) for caches in settings]


def _contestant(
    decoder: Decoder, name: str, prompt: list[int], tokens: int, caches: Caches, deduces: bool
) -> Contestant:
    def generate() -> list[int]:
        steps = decode(decoder, [prompt], tokens, Sampling(temperature=0.0), caches=caches)
        return [token for (token,) in steps if token is not None]

    def logits_NV(ids: list[int]) -> Tensor:
        if deduces and not caches.kv and not caches.calibration:  # calibrated on the text of the last step
            last_1V: Tensor = decoder(_row(prompt + ids[:-1], decoder))[0, -1:]
            return last_1V
        state = new_state(decoder, [prompt], tokens)
        first_1V: Tensor = decoder(_row(prompt, decoder), state)[0, -1:]
        return torch.cat([first_1V, decoder(_row(ids[:-1], decoder), state)[0]]) if len(ids) > 1 else first_1V

    parameters = sum(parameter.numel() for parameter in decoder.parameters())
    said = caches if deduces else Caches(caches.kv, calibration=False)
    return Contestant(name, parameters, said, generate, logits_NV)


def _row(ids: list[int], decoder: Decoder) -> Tensor:
    return torch.tensor([ids], device=decoder.device)


@torch.inference_mode()
def check(one: Contestant, tokens: int) -> None:
    """`UserError` unless it generates so many tokens, each the likeliest of a pass over the whole text."""
    ids, said = one.generate(), f"{one.model}, caches {one.caches.label}: not timed"
    if len(ids) != tokens:
        raise UserError(f"{said}: {len(ids)} tokens; expected {tokens}")
    logits_NV = one.logits_NV(ids).double()
    taken_N = logits_NV.gather(1, torch.tensor(ids[-len(logits_NV) :], device=logits_NV.device)[:, None])[:, 0]
    behind = float((logits_NV.amax(1) - taken_N).max() / logits_NV.std())
    if not behind <= MOST_BEHIND:  # also for NaN
        other = f"{behind:.1e} standard deviations less likely than another in one pass over the text"
        raise UserError(f"{said}: a token is {other}; expected at most {MOST_BEHIND:g}")


def time_in_turn(every: Sequence[Contestant], spec: TimesSpec) -> list[Timed]:
    """Check all, which warms them up, then time them in turn, so that a slow moment of the machine meets all."""
    timed = [Timed(one, []) for one in every]
    with progress("generating", (spec.runs + 1) * len(timed), "runs") as advance:
        for one in every:
            check(one, spec.tokens)
            advance(1)
        for _ in range(spec.runs):
            for found in timed:
                start_s = time.perf_counter()
                found.contestant.generate()
                found.runs_s.append(time.perf_counter() - start_s)
                advance(1)
    return timed


def times_table(found: Sequence[Timed], spec: TimesSpec, device: torch.device) -> Table:
    """Models as rows, settings of the caches as columns; then what the caches save, and the first other model."""
    by_model = _by_model(found)
    other = by_model[spec.against[0].name] if spec.against else None
    columns = ["model", "parameters", *(one.label for one in SETTINGS), "none / all"]
    columns += [f"{spec.against[0].name} / model"] if other else []
    rows = []
    for name, ways in by_model.items():
        best = ways[-1]
        row = [name, f"{best.contestant.parameters:,}", *_milliseconds(ways)]
        row += [f"{ways[0].times_as_long(best):.2f}"]
        rows.append(row + ([f"{other[-1].times_as_long(best):.2f}"] if other else []))
    return Table("Time with and without caches", columns, rows, _meaning(found, spec, device))


def _milliseconds(ways: Sequence[Timed]) -> list[str]:
    by_setting = {way.contestant.caches: way for way in ways}
    ways_in_order = [by_setting.get(setting) for setting in SETTINGS]
    return [MISSING if way is None else f"{1e3 * way.median_s:,.1f}\n{_ends(way)}" for way in ways_in_order]


def _ends(way: Timed) -> str:
    return f"{1e3 * min(way.runs_s):,.1f} to {1e3 * max(way.runs_s):,.1f}"


def _meaning(found: Sequence[Timed], spec: TimesSpec, device: torch.device) -> str:
    machine = ", ".join(f"{name} {fact}" for name, fact in describe_machine(device, "float32").items())
    said = (
        f"Milliseconds for {spec.tokens} tokens behind {spec.prompt_tokens}, the prompt's pass included, one stream:"
        f" the median of {spec.runs} runs, lowest to highest below, all taking turns. Ratios are medians over"
        f" the turns, of all caches that a model has. Each token was checked first. A time is one of a machine:"
        f" {machine}."
    )
    busiest = max(scatter(one.runs_s) for one in found)
    busy = f" The machine was busy: slow runs took {busiest:.1f} times the median." if busiest > SCATTER_LIMIT else ""
    return said + busy


def times_figures(found: Sequence[Timed], device: torch.device) -> dict[str, Any]:
    """The numbers by name, ready for JSON: seconds of each run."""
    models = {
        name: {
            "parameters": ways[0].contestant.parameters,
            "settings": [
                {
                    "kv_cache": way.contestant.caches.kv,
                    "calibration_cache": way.contestant.caches.calibration,
                    "median_s": way.median_s,
                    "runs_s": way.runs_s,
                }
                for way in ways
            ],
            "none_over_all": ways[0].times_as_long(ways[-1]),
        }
        for name, ways in _by_model(found).items()
    }
    return {"models": models, "machine": describe_machine(device, "float32")}


def _by_model(found: Sequence[Timed]) -> Mapping[str, list[Timed]]:
    by_model: dict[str, list[Timed]] = {}
    for one in found:
        by_model.setdefault(one.contestant.model, []).append(one)
    return by_model
