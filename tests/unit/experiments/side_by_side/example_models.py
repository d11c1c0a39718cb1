"""Three models with all that a page can tell of them, made up; names as long as people give them."""

from linnet.experiments.side_by_side.record import (
    CONTEXTS,
    AbilityScore,
    Beside,
    DecodingSpeed,
    MemoryFigures,
    TaskScore,
    WrittenText,
)
from linnet.experiments.side_by_side.report import SideBySide
from linnet.present.table import Table

NAMES = ("attention", "TED with a bank of forty rates", "a-name-without-any-blank-of-forty-letters")
CHANCE = "not distinguishable from chance"


def beside(number: int) -> Beside:
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
    return Beside(
        seed=0,
        decoding=DecodingSpeed(tokens_per_s=1234.5, runs=5, tokens=100, machine={"processor": "abacus"}),
        tasks=list(scores.values()),
        abilities=abilities,
        samples=[WrittenText(prompt="Once", text=f" upon{'o' * 300} a | time {number}.", complete=number == 0)],
    )


def compared(**changes: object) -> SideBySide:
    rows = [[name, f"1.{number}345 ± 0.0067", "26,688"] for number, name in enumerate(NAMES)]
    memory = {
        name: MemoryFigures(100_000, {tokens: (8 << 10) + 64 * tokens * (number < 2) for tokens in CONTEXTS})
        for number, name in enumerate(NAMES)
    }
    plain = {
        "title": "three models",
        "quality": [Table("Held-out text", ("run", "bits per byte", "parameters"), rows, "mean ± deviation")],
        "pictures": [],
        "memory": memory,
        "beside": {name: beside(number) for number, name in enumerate(NAMES)},
        "differences": [Table("Against attention", ("", *NAMES[1:]), [["less attention", "+0.1", "+0.2"]])],
        "further": [Table("As published", ("model", "arc_easy"), [["GPT", "31.0"]], "Published: somewhere.")],
    }
    return SideBySide(**{**plain, **changes})
