"""Models with all that a page can tell of them, made up; names as long as people give them."""

from collections.abc import Sequence

from linnet.experiments.measures import (
    CONTEXTS,
    AbilityScore,
    DecodingSpeed,
    MemoryFigures,
    ModelMeasures,
    TaskScore,
    WrittenText,
)
from linnet.experiments.report import SideBySide
from linnet.present.table import Table

NAMES = ("attention", "TED with a bank of forty rates", "a-name-without-any-blank-of-forty-letters")
TEN_NAMES = tuple(f"attention, window of {window} tok." for window in range(1024, 2304, 128))
"""Of 30 letters each."""

CHANCE = "not distinguishable from chance"


def extra(number: int) -> ModelMeasures:
    scores = {
        "arc_easy": TaskScore(
            task="arc_easy", value=0.3 + 0.01 * number, standard_error=0.02, chance=0.25, items=500, verdict=CHANCE
        ),
        "Avg-1": TaskScore(task="Avg-1", value=0.4, standard_error=None, chance=0.3, items=500, averaged=True),
    }
    abilities = [
        AbilityScore(
            ability="recall pairs=8", chance=1e-9, items=50, right=0.5, standard_error=0.07, above_chance=True
        ),
        AbilityScore(ability="needle words=100", chance=0.02, missing="takes 301 tokens or more; the model reads 128"),
    ]
    return ModelMeasures(
        seed=0,
        speed=DecodingSpeed(tokens_per_s=1234.5, runs=5, tokens=100, machine={"processor": "abacus"}),
        tasks=list(scores.values()),
        abilities=abilities,
        samples=[WrittenText(prompt="Once", text=f" upon{'o' * 300} a | time {number}.", complete=number == 0)],
    )


def compared(names: Sequence[str] = NAMES, **changes: object) -> SideBySide:
    rows = [[name, f"1.{number}345 ± 0.0067", "26,688"] for number, name in enumerate(names)]
    memory = {
        name: MemoryFigures(100_000, {tokens: (8 << 10) + 64 * tokens * (number < 2) for tokens in CONTEXTS})
        for number, name in enumerate(names)
    }
    plain = {
        "heading": "three models",
        "quality": [Table("Held-out text", ("run", "bits per byte", "parameters"), rows, "mean ± deviation")],
        "pictures": [],
        "memory": memory,
        "extras": {name: extra(number) for number, name in enumerate(names)},
        "differences": [
            Table(
                "Against attention", ("", *names[1:]), [["less attention", *(f"+0.{n}" for n in range(1, len(names)))]]
            )
        ],
        "further": [Table("As published", ("model", "arc_easy"), [["GPT", "31.0"]], "Published: somewhere.")],
    }
    return SideBySide(**{**plain, **changes})
