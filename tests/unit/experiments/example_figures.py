"""Figures as a demo might find them."""

import math
from dataclasses import replace
from typing import Any

from linnet.experiments.demo_report import CorpusFigures, DemoFigures, ModelFigures, Point
from linnet.experiments.measures import MemoryFigures, WrittenText

STEPS, TOKENS_PER_STEP = 400, 2048
TOKENS = STEPS * TOKENS_PER_STEP
STORY = (
    ", there was a little girl named Nora. Nora had a funny parrot named Pip. One morning, the door was open, and"
    ' Pip was gone! Nora was very sad.\nNora asked her dad, "Pip is gone! What can we do?" Dad said, "Do not worry.'
    ' We will look together." They looked behind the house and next to the gate. There was Pip, fast asleep behind'
    " the rock!\nNora gave Pip a big hug. From that day on, Nora always closed the door."
)


def model(key: str = "ted", title: str = "TED", **changes: Any) -> ModelFigures:
    """One model; its state is 2 KiB and a little for each token."""
    training = [(step * TOKENS_PER_STEP, bits_at(step)) for step in range(4, STEPS + 1, 4)]
    figures = ModelFigures(
        key=key,
        title=title,
        idea="lets every token fade at a rate that it chose itself.",
        folder=f"demo/{key}",
        parameters=1_073_536,
        bits_per_byte=0.7312,
        whole_sequence_bits_per_byte=None,
        leak=None,
        name_recall=0.1,
        tokens=TOKENS,
        training_s=48.7,
        training_tokens_per_s=16_820.4,
        decode_tokens_per_s=1_012.3,
        memory=MemoryFigures(
            weights_bytes=4 * 1_073_536,
            state_bytes={tokens: 2064 * tokens for tokens in (2**power for power in range(17))},
            policy_state_bytes={"bank": {2**power: 90_000 + 3_000 * power for power in range(17)}},
        ),
        training_curve=training,
        validation_curve=training[5::6],
        sample=WrittenText(prompt="Once upon a time", text=STORY, complete=True),
    )
    return replace(figures, **changes)


def bits_at(step: int) -> float:
    """A learning curve with some noise."""
    return 0.7 + 2.3 * math.exp(-step / 60) + 0.25 * math.exp(-step / 300) + 0.02 * math.sin(step * 12.9)


def shifted(points: list[Point], amount: float) -> list[Point]:
    return [(x, y + amount) for x, y in points]


def models() -> list[ModelFigures]:
    """The three, told apart in every figure."""
    ted = model()
    attention = replace(
        model("attention", "attention"),
        parameters=1_083_776,
        bits_per_byte=0.7789,
        name_recall=None,
        training_s=57.2,
        training_tokens_per_s=14_321.9,
        decode_tokens_per_s=905.1,
        memory=MemoryFigures(4 * 1_083_776, {tokens: 4096 * tokens for tokens in ted.memory.state_bytes}),
        training_curve=shifted(ted.training_curve, 0.05),
        validation_curve=shifted(ted.validation_curve, 0.06),
        sample=WrittenText(
            prompt="Once upon a time", text=STORY.replace("Nora", "Max").replace("girl", "boy"), complete=True
        ),
    )
    pldr = replace(
        model("pldr", "PLDR-LLM"),
        parameters=1_212_004,
        bits_per_byte=0.8034,
        whole_sequence_bits_per_byte=0.7721,
        leak=0.0313,
        name_recall=0.642,
        training_s=71.0,
        training_tokens_per_s=11_538.0,
        decode_tokens_per_s=840.8,
        memory=MemoryFigures(4 * 1_083_776, {tokens: 4096 * tokens + 65536 for tokens in ted.memory.state_bytes}),
        training_curve=shifted(ted.training_curve, 0.02),
        validation_curve=shifted(ted.validation_curve, 0.08),
        sample=WrittenText(prompt="Once upon a time", text=STORY.replace("Nora", "Ella")[:260], complete=False),
    )
    return [attention, pldr, ted]


def figures(**changes: Any) -> DemoFigures:
    """A whole demo."""
    found = DemoFigures(
        models=models(),
        corpus=CorpusFigures("demo/data", 1024, 9, 6000, 1_012_345, 3_460_000, 300, 51_234, 173_000, 1.8765),
        context_length=256,
        seed=0,
        temperature=0.7,
        top_p=0.95,
        decode_tokens=200,
        decode_runs=5,
        parts_s={"corpus": 5.31, "evaluation": 8.4, "decode speed": 4.2, "stories": 0.84},
        machine={"processor": "An Example CPU @ 2.00GHz", "cores": "2", "linnet": "0.1.0"},
        command=".venv/bin/linnet",
        invocation="linnet demo",
        made="2026-01-02 03:04 UTC",
    )
    return replace(found, **changes)
