import pytest

from linnet.core.errors import UserError
from linnet.data.cleaning_steps import CleaningSpec, clean_rows
from linnet.data.text_folder import TextRow

PROSE = """The birds of the valley sang to the trees until the evening came over the hills.
Nobody in that village could have known what winter would bring with it.
My grandmother kept a garden where beans and roses grew side by side.
Each morning she walked down to her gate, opened it, and waited for the postman.
Letters arrived seldom, yet every one was read aloud twice at supper.
When snow finally fell, our whole family gathered around an old iron stove."""
REPEATED = "\n".join([PROSE.splitlines()[0]] * 6)
MIXED = f"{PROSE}\nHome | Contact | About"
BRACKET = f"{PROSE}\nThe code is {{ here }} for all of you."
DOCUMENTS = [PROSE, REPEATED, "Too short.", MIXED, BRACKET]


def spec(*steps):
    return CleaningSpec.parse({"steps": [{"kind": step} if isinstance(step, str) else step for step in steps]}, "test")


def cleaned(texts, steps):
    return clean_rows([TextRow(text, "file") for text in texts], steps.steps)


@pytest.mark.parametrize(
    ("step", "reasons"),
    [
        ("gopher_repetition", [None, "dup_line_frac", "top_2_gram", None, None]),
        ("gopher_quality", [None, None, "gopher_short_doc", None, None]),
        ("c4", [None, None, "too_few_sentences", None, "curly_bracket"]),
        ("fineweb_quality", [None, "char_dup_ratio", "short_line_ratio", None, None]),
        ("pii", [None] * 5),
    ],
)
def test_reasons_of_each_step(step, reasons):
    assert [outcome.reason for outcome in cleaned(DOCUMENTS, spec(step))] == reasons


@pytest.mark.parametrize("kind", ["gopher_repetition", "gopher_quality", "c4", "fineweb_quality", "pii"])
def test_white_space_alone_is_removed_by_the_first_step(kind):
    """The measures of gopher_quality that divide by the number of words come behind limits that may be left out."""
    limits = ("min_doc_words", "max_doc_words", "min_avg_word_length", "max_avg_word_length")
    without = dict.fromkeys(limits) if kind == "gopher_quality" else {}
    found = cleaned([" ", "\n\n", "\u2028", PROSE], spec({"kind": kind, **without}))
    assert [outcome.reason for outcome in found] == ["empty"] * 3 + [None]
    assert [outcome.bytes for outcome in found[:3]] == [[1, 1], [2, 2], [3, 3]]


def test_lines_of_c4_equal_those_of_datatrove():
    filters = pytest.importorskip("datatrove.pipeline.filters")
    from datatrove.data import Document

    texts, options = [PROSE, REPEATED, MIXED, BRACKET], {"min_num_sentences": -1}  # it would need spaCy for sentences
    theirs = []
    for text in texts:
        document = Document(text=text, id="")
        result = filters.C4QualityFilter(**options).filter(document)
        theirs.append((document.text, None if result is True else result[1]))
    assert [(o.row.text, o.reason) for o in cleaned(texts, spec({"kind": "c4", **options}))] == theirs
    assert theirs[2] == (PROSE, None) and theirs[3][1] == "curly_bracket"


def test_addresses_are_replaced_alike_in_every_document():
    found = cleaned(["Write to jo@linnet.dev today."] * 3, spec("pii"))
    assert len({outcome.row.text for outcome in found}) == 1
    assert "jo@" not in found[0].row.text


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"kind": "c5"}, "'c5': must be one of 'gopher_repetition'"),
        ({"kind": "c4", "sentences": 2}, "sentences: unknown key"),
        ({"kind": "gopher_quality", "min_doc_words": 0}, "min_doc_words: 0"),
        ({"kind": "decontamination", "against": []}, "against.*must not be empty"),
    ],
    ids=["kind", "key", "value", "against"],
)
def test_mistakes_in_the_steps_are_named(step, message):
    with pytest.raises(UserError, match=message):
        spec(step)


def test_the_default_is_that_of_fineweb():
    """Its C4 step keeps lines without a mark at their end."""
    kinds = [step.kind for step in CleaningSpec().steps]
    assert kinds == ["gopher_repetition", "gopher_quality", "c4", "fineweb_quality", "pii"]
    outcomes = cleaned([MIXED, REPEATED], CleaningSpec())
    assert outcomes[0].row.text == MIXED and outcomes[0].reason is None
    assert outcomes[1].reason is not None


def test_comparisons_of_one_kind_need_a_filter_between():
    with pytest.raises(UserError, match="steps: exact_duplicates twice without a filter between"):
        spec("c4", "exact_duplicates", "near_duplicates", "exact_duplicates")
    stages = spec("exact_duplicates", "c4", "near_duplicates", {"kind": "pii", "enabled": False}).stages()
    assert [(len(one.filters), len(one.comparisons), one.first) for one in stages] == [(0, 1, 0), (1, 1, 1), (0, 0, 0)]
