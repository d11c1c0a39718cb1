"""The gate that all ways in and out share."""

import json
import math
import re

import pytest
import tokenizers
import torch
from small_llamas import plain_model

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.interop.parity import bits_per_byte, check_logits, check_same_ids, compare, expected_of, logits_within
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec


def decoder(**fields: object) -> Decoder:
    torch.manual_seed(0)
    return Decoder(ModelSpec.parse({**plain_model(60, {}, {}, {}), **fields}, "small")).eval()


@torch.no_grad()
@pytest.mark.parametrize(
    ("context", "length", "steps"), [(400, 263, 200), (220, 220, 200), (80, 80, 73), (2, 2, 2), (1, 1, 1)]
)
def test_expected_logits_are_those_of_one_pass_and_end_with_learned_positions(context: int, length: int, steps: int):
    model = decoder(context_length=context, embedding={"positions": "learned"})
    found = expected_of(model)
    torch.testing.assert_close(found.logits, model(found.tokens[None])[0], rtol=1e-4, atol=1e-5)
    assert found.steps == steps and len(found.tokens) == length
    greedy_T = found.logits[-steps:].argmax(1)
    assert torch.equal(greedy_T[:-1], found.tokens[len(found.tokens) - steps + 1 :])


def test_the_first_token_that_differs_is_named_and_no_number_differs():
    expected = expected_of(decoder())
    other_TV = expected.logits.clone()
    other_TV[70:, 3] += 0.5 * expected.logits.std()
    with pytest.raises(UserError, match=r"small: after 71 tokens logits by it differ by 5\.0e-01 of"):
        compare(expected, other_TV, 0.4, "it", "small")
    assert compare(expected, other_TV, 0.6, "it", "small").error == pytest.approx(0.5, rel=1e-4)
    other_TV[9, 9] = math.nan
    with pytest.raises(UserError, match="after 10 tokens logits by it differ by nan"):
        check_logits(expected.logits, other_TV, 0.6, "it", "small")


def test_ids_that_differ_are_shown_from_where_they_do():
    tokenizer = Tokenizer.train("bytes", [])
    assert check_same_ids(tokenizer, tokenizer.encode, "it", "small", ["ab", "c"]) == 3
    with pytest.raises(UserError, match=r"small: 'abc': from token 2 on \[7\] by it: expected \[99\], as here"):
        check_same_ids(tokenizer, lambda text: [*tokenizer.encode(text)[:2], 7], "it", "small", ["abc"])


def test_the_gate_holds_each_added_token():
    library = tokenizers.Tokenizer.from_str(json.dumps(Tokenizer.train("bytes", []).definition))
    library.add_tokens(["<tool>"])
    tokenizer = Tokenizer(json.loads(library.to_str()), "small")
    for name, special in (("<tool>", False), ("<|end|>", True)):

        def encode(text: str, name: str = name) -> list[int]:
            return [0] if name in text else tokenizer.encode(text)

        with pytest.raises(UserError, match=rf"small: 'Say {re.escape(name)}, or.* from token 0 on \[0\] by it"):
            check_same_ids(tokenizer, encode, "it", "small", ["ab"])
        if special:
            assert check_same_ids(tokenizer, encode, "it", "small", ["ab"], special=False) == 2


def test_bits_are_counted_by_byte():
    tokenizer = Tokenizer.train("bytes", [])
    logits_TV = torch.zeros(4, tokenizer.vocab_size)
    found = bits_per_byte(logits_TV, torch.tensor(tokenizer.encode_document("ab é")[:5]), tokenizer)
    assert found == pytest.approx(math.log2(tokenizer.vocab_size), rel=1e-5)


def test_equal_logits_are_called_identical():
    assert logits_within(0.0) == "identical logits"
    assert logits_within(2e-6) == "logits within 2.0e-06 of their spread"
