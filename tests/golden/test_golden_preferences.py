"""Losses of pairs of answers by TRL, and the norms of their gradients, reproduced on the weights of a small Llama.

Their file is made by `writers/write_preferences.py`.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from golden_file import Named, below, llama_of, read
from linnet.data.loader import Batch
from linnet.model.decoder import Decoder
from linnet.training.objectives.preference import REFERENCE, answer_scores, preference_loss
from linnet.training.sections import PreferenceSpec

Golden = tuple[Named, dict[str, Any]]


@pytest.fixture(scope="module")
def golden() -> Golden:
    return read("preferences_small.safetensors")


def decoder_of(golden: Golden, weights: str, value: bool = False) -> Decoder:
    tensors, config = golden
    return llama_of(below(tensors, weights), config["llama"], tensors["value"] if value else None)


def batch_of(golden: Golden) -> Batch:
    pairs = golden[1]["pairs"]
    rows = [(pair["prompt"], pair[side]) for pair in pairs for side in ("chosen", "rejected")]
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens, weights = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest - 1)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor([*prompt, *answer])
        weights[row, len(prompt) - 1 : end - 1] = 1
    return Batch(tokens[:, :-1], tokens[:, 1:], weights.bool(), rows_per_example=2, mean_over_examples=True)


@pytest.mark.parametrize("kind", ["dpo", "ipo", "orpo", "reward"])
def test_the_loss_and_its_gradients_are_those_of_trl(kind: str, golden: Golden):
    tensors, config = golden
    decoder, batch = decoder_of(golden, "policy", value=kind == "reward"), batch_of(golden)
    with torch.no_grad():
        reference = answer_scores(decoder_of(golden, "reference"), batch).sums_B.double()
    batch = replace(batch, extras={REFERENCE: reference})
    beta = {} if kind == "reward" else {"beta": config["beta"]}
    loss = preference_loss(decoder, batch, PreferenceSpec(kind=kind, **beta)).total / batch.examples
    loss.backward()
    squares = [parameter.grad.square().sum() for parameter in decoder.parameters() if parameter.grad is not None]
    torch.testing.assert_close(loss.detach(), tensors[f"{kind}.loss"], rtol=1e-5, atol=1e-6, check_dtype=False)
    torch.testing.assert_close(torch.stack(squares).sum().sqrt(), tensors[f"{kind}.norm"], rtol=1e-5, atol=1e-6)
