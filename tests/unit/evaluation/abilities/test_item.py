"""Items as rows of tokens, and what a tokenizer can_encode."""

from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.abilities.contract import Question, SymbolEncoder, SymbolItem
from linnet.ops.cross_entropy import IGNORE_INDEX

BYTES = SymbolEncoder(Tokenizer.train("bytes", []))
NO = IGNORE_INDEX


def test_an_answer_is_read_symbol_by_symbol_behind_its_prompt():
    item = SymbolItem.prompt_and_answer("ab|", "xy")
    tokens, targets = item.row(BYTES)
    assert tokens == [256, *b"ab|x"]
    assert targets == [NO, NO, NO, *b"xy"]
    assert item.identity == "ab|x"


def test_what_is_wanted_need_never_be_read():
    tokens, targets = SymbolItem("pq", (None, "7")).row(BYTES)
    assert (tokens, targets) == ([256, *b"pq"], [NO, NO, *b"7"])


def test_a_question_is_encoded_in_its_two_parts():
    tokens, targets = Question("how?", " so").row(BYTES)
    assert tokens == [256, *b"how? s"] and targets == [NO] * 4 + [*b" so"]
    assert len(tokens) == len(targets)


def test_symbols_are_spoken_where_each_is_one_token():
    assert BYTES.can_encode("ab|") and not BYTES.can_encode("ab\u4e00")
    own = SymbolEncoder(Tokenizer.train("char", ["ab\u4e00"]))
    assert own.can_encode("ab\u4e00") and not own.can_encode("\u4e01")
