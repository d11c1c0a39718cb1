"""Items as rows of tokens, and what a tokenizer speaks."""

from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.abilities.item import Question, Speech, Symbols
from linnet.ops.cross_entropy import IGNORED

BYTES = Speech(Tokenizer.train("bytes", []))
NO = IGNORED


def test_an_answer_is_read_symbol_by_symbol_behind_its_prompt():
    item = Symbols.asked("ab|", "xy")
    tokens, targets = item.row(BYTES)
    assert tokens == [256, *b"ab|x"]
    assert targets == [NO, NO, NO, *b"xy"]
    assert item.identity == "ab|x"


def test_what_is_wanted_need_never_be_read():
    tokens, targets = Symbols("pq", (None, "7")).row(BYTES)
    assert (tokens, targets) == ([256, *b"pq"], [NO, NO, *b"7"])


def test_a_question_is_encoded_in_its_two_parts():
    tokens, targets = Question("how?", " so").row(BYTES)
    assert tokens == [256, *b"how? s"] and targets == [NO] * 4 + [*b" so"]
    assert len(tokens) == len(targets)


def test_symbols_are_spoken_where_each_is_one_token():
    assert BYTES.speaks("ab|") and not BYTES.speaks("ab\u4e00")
    own = Speech(Tokenizer.train("char", ["ab\u4e00"]))
    assert own.speaks("ab\u4e00") and not own.speaks("\u4e01")
