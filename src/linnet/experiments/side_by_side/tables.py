"""Models as columns: memory against the length of the text, speed, tasks, abilities; and memory as a picture."""

from collections.abc import Collection, Mapping, Sequence

from linnet.evaluation.statistics import NOT_ABOVE_CHANCE
from linnet.evaluation.tasks.results import percent
from linnet.experiments.side_by_side.record import CONTEXTS, AbilityScore, Beside, MemoryFigures, TaskScore, WrittenText
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series, line_style
from linnet.present.result import Paragraph, Part, Passage, Picture
from linnet.present.table import MISSING, Table

CHANCE = "chance, %"
TOLD = CONTEXTS[::2]
"""Tokens of text that the table has a row for."""

CHART_INCHES = (4.9, 3.9)
"""Small enough to be read on a telephone, two in a row on a desk."""

MANY = 8
"""More lines than that have their names in a legend: at their ends they would be hard to follow."""


def chart(panel: Panel) -> Plot:
    """A picture that tells lines apart without color: by marks, dashes, and names at their ends."""
    named = sum(1 for series in panel.series if series.name)
    return Plot([panel], CHART_INCHES, names="ends" if named <= MANY else "legend")


def memory_table(memory: Mapping[str, MemoryFigures]) -> Table:
    """Bytes of weights and state together, the state's below."""
    rows = [("weights alone", *(numbers.binary(one.weights_bytes) for one in memory.values()))]
    rows += [(f"at {numbers.tokens(tokens)}", *(_held(one, tokens) for one in memory.values())) for tokens in TOLD]
    meaning = (
        "Bytes of the weights and of the state of one stream with room for so many tokens of text, both in float32,"
        " exact, from the descriptions; below, the state alone. That a model reads so far does not mean that it was"
        " trained to."
    )
    return Table("Memory against context", ("memory", *memory), rows, meaning)


def _held(one: MemoryFigures, tokens: int) -> str:
    return f"{numbers.binary(one.total(tokens))}\n{numbers.binary(one.state_bytes[tokens])} of state"


def memory_picture(memory: Mapping[str, MemoryFigures]) -> Picture:
    """Weights and state over the tokens of text, both axes logarithmic.

    Each line has its marks at lengths of its own: lines that lie on each other are all told by their marks.
    """
    turns = min(len(memory), len(CONTEXTS))
    series = [
        Series(CONTEXTS, [one.total(tokens) for tokens in CONTEXTS], name, line_style(number), number, dots=dots)
        for number, (name, one) in enumerate(memory.items())
        for dots in [range(number % turns, len(CONTEXTS), turns)]
    ]
    x = Axis("tokens of text", "log2", places={tokens: numbers.tokens(tokens) for tokens in TOLD})
    caption = (
        "Weights and state of one stream, both axes logarithmic. A line that rises has a state that grows with the"
        " text; a level one has a state that does not grow, or one that is small beside the weights."
    )
    panel = Panel(x, Axis("bytes", "log2", numbers.binary), series)
    return Picture("memory", "Memory against context", chart(panel), caption)


def speed_table(beside: Mapping[str, Beside]) -> list[Table]:
    """Tokens a second of decoding, where that was measured."""
    found = {name: one.decoding for name, one in beside.items()}
    first = next((one for one in found.values() if one is not None), None)
    if first is None:
        return []
    row = [
        "decoding, tokens/s",
        *(MISSING if one is None else numbers.grouped(one.tokens_per_s) for one in found.values()),
    ]
    machine = ", ".join(f"{name} {fact}" for name, fact in first.machine.items())
    meaning = (
        f"One stream: the median of {first.runs} runs of {first.tokens} tokens, the models taking turns. A speed is one"
        f" of a machine: {machine}."
    )
    return [Table("Speed of decoding", ("", *found), [row], meaning)]


def task_table(beside: Mapping[str, Beside]) -> list[Table]:
    """A row for each task that any model was asked: chance, then score and error, the verdict below."""
    by_model = {name: {score.task: score for score in one.tasks} for name, one in beside.items()}
    asked = {task: score for scores in by_model.values() for task, score in scores.items()}
    if not asked:
        return []
    rows = [
        [task, percent(score.chance), *(_score(scores.get(task)) for scores in by_model.values())]
        for task, score in asked.items()
    ]
    items = sum(score.items for score in asked.values() if not score.averaged)
    meaning = (
        f"Per cent, ± standard error, {numbers.grouped(items)} items in all; chance: what guessing gives; below each"
        " score whether it can be told from chance (two-sided, 5 % for all tasks together, Holm)."
    )
    return [Table("Tasks", ("task", CHANCE, *by_model), rows, meaning, leading=2)]


def _score(score: TaskScore | None) -> str:
    if score is None:
        return MISSING
    error = "" if score.standard_error is None else f" ± {percent(score.standard_error)}"
    return f"{percent(score.value)}{error}\n{score.verdict}".rstrip("\n")


def ability_table(beside: Mapping[str, Beside]) -> list[Table]:
    """A row for each ability that any model was asked."""
    by_model = {name: {score.ability: score for score in one.abilities} for name, one in beside.items()}
    asked = {
        ability: score for scores in by_model.values() for ability, score in scores.items() if score.right is not None
    }
    if not asked:
        return []
    rows = [
        [
            ability,
            numbers.percent_of(score.chance),
            *(_answers(scores.get(ability)) for scores in by_model.values()),
        ]
        for ability, score in asked.items()
    ]
    items = max(score.items for score in asked.values())
    meaning = (
        f"Whole answers that are right, greedily, per cent ± standard error, of {numbers.grouped(items)} questions"
        " each; below each whether it is above chance (exact, 5 % for all abilities together, Holm)."
        + _not_asked(by_model, asked)
    )
    return [Table("Abilities", ("ability", CHANCE, *by_model), rows, meaning, leading=2)]


def _not_asked(by_model: Mapping[str, Mapping[str, AbilityScore]], asked: Collection[str]) -> str:
    """The kinds of abilities that no model could be asked, by why."""
    left = [one for scores in by_model.values() for one in scores.values() if one.ability not in asked]
    reasons = {"too long for the context": "tokens or more", "of symbols that are no tokens": "symbols"}
    said = []
    for reason, mark in reasons.items():
        kinds = dict.fromkeys(one.ability.split()[0] for one in left if mark in one.missing)
        said += [f"{reason}: {', '.join(kinds)}"] if kinds else []
    return f" Not asked of any model: {'; '.join(said)}." if said else ""


def _answers(score: AbilityScore | None) -> str:
    if score is None:
        return MISSING
    if score.right is None:
        return f"{MISSING}\n{score.missing}"
    verdict = "above chance" if score.above_chance else NOT_ABOVE_CHANCE
    return f"{percent(score.right)} ± {percent(score.standard_error)}\n{verdict}"


def sample_parts(beside: Mapping[str, Beside]) -> list[Part]:
    """What each model wrote, side by side for each prompt."""
    by_model = {name: {sample.prompt: sample for sample in one.samples} for name, one in beside.items()}
    prompts = list(dict.fromkeys(prompt for samples in by_model.values() for prompt in samples))
    parts: list[Part] = []
    for prompt in prompts:
        parts.append(Paragraph(f"What each writes behind “{prompt}”" if prompt else "What each writes", ""))
        written = [
            (name, number, samples[prompt])
            for number, (name, samples) in enumerate(by_model.items())
            if prompt in samples
        ]
        parts += [_passage(name, number, sample) for name, number, sample in written]
    return parts


def _passage(name: str, number: int, sample: WrittenText) -> Passage:
    end = "" if sample.complete else " …"
    return Passage(name, sample.prompt, sample.text + end, number, "" if sample.complete else "Cut here.")


def sample_table(beside: Mapping[str, Beside]) -> list[Table]:
    """The same as rows, for a table alone."""
    by_model = {name: {sample.prompt: sample for sample in one.samples} for name, one in beside.items()}
    prompts = dict.fromkeys(prompt for samples in by_model.values() for prompt in samples)
    rows: Sequence[Sequence[str]] = [
        [f"writes behind “{prompt}”", *(_text(samples.get(prompt)) for samples in by_model.values())]
        for prompt in prompts
    ]
    return [Table("Samples", ("", *by_model), rows, text=True)] if rows else []


def _text(sample: WrittenText | None) -> str:
    return MISSING if sample is None else sample.text.strip() + ("" if sample.complete else " …")
