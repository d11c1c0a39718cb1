"""Steps that compare documents, switched on and off, against what each of them should leave out."""

import numpy as np
import pytest

from linnet.data.cleaning_steps import CleaningSpec
from linnet.data.comparison import REASONS, comparison_settings, decide, describe
from linnet.data.decontaminate import EvaluationIndex

TEST = " ".join(f"t{number}" for number in range(60))
OWN = " ".join(f"w{number}" for number in range(60))
TEXTS = [OWN, OWN.upper(), f"{OWN} more", TEST, f"{TEST} more", f"{OWN} {TEST}", "?!", "? !"]


def reasons_of(kinds):
    plain = [{"kind": kind, **({"against": ["test.txt"]} if kind == "decontamination" else {})} for kind in kinds]
    settings = comparison_settings(CleaningSpec.parse({"steps": plain}, "test").stages()[0].comparisons)
    tests = [TEST] if "decontamination" in kinds else []
    index = EvaluationIndex(tests, settings.overlap) if tests else None
    records = np.concatenate([describe(some, settings, index) for some in (tests, TEXTS) if some])
    found = decide(records, len(tests), settings).reasons[len(tests) :]
    return ["" if not reason else REASONS[reason - 1] for reason in found.tolist()]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["exact_duplicates"], ["", "exact", "", "", "", "", "", "exact"]),
        (["near_duplicates"], ["", "near", "near", "", "near", "", "", ""]),
        (["exact_duplicates", "near_duplicates"], ["", "exact", "near", "", "near", "", "", "exact"]),
        (["decontamination"], ["", "", "", *["evaluation_overlap"] * 3, "", ""]),
        (["near_duplicates", "decontamination"], ["", "near", "near", *["evaluation_overlap"] * 3, "", ""]),
    ],
    ids=lambda value: "-".join(value) if "_" in value[0] else "",
)
def test_each_step_leaves_out_its_own_kind_of_copies(kinds, expected):
    assert reasons_of(kinds) == expected


def test_decontamination_finds_near_duplicates_of_short_evaluation_documents():
    """One of 9 words has no n-gram of 13, so that only its signature tells; copies among the documents stay."""
    short, copies = "one two three four five six seven eight nine", ["own words"] * 2
    steps = [{"kind": "decontamination", "against": ["test.txt"], "ngram_words": 20}]
    settings = comparison_settings(CleaningSpec.parse({"steps": steps}, "test").stages()[0].comparisons)
    index = EvaluationIndex([short], settings.overlap)
    records = describe([short, short.upper() + "!", *copies], settings, index)
    records["match"] = -1
    assert decide(records, 1, settings).reasons.tolist() == [0, 1 + REASONS.index("evaluation_copy"), 0, 0]
