"""The variation of the operator over prompts."""

import json
import math

import numpy as np
import pytest
import torch
from small_models import small_decoder

from linnet.core.errors import UserError
from linnet.data.shards import TokenSequence
from linnet.inspection.invariance import Variation, document_prompts, invariance
from linnet.layers.mixers.plga import DensitySpec, PlgaSpec
from linnet.model.watched import operators

PLGA = PlgaSpec(heads=2, metric_hidden=12, residual_units=2)


def _prompts(count: int, tokens: int) -> torch.Tensor:
    prompts = torch.randint(1, 23, (count, tokens), generator=torch.Generator().manual_seed(3))
    prompts[:, 0] = 0
    return prompts


def test_the_variation_by_its_definition():
    decoder, prompts = small_decoder(PLGA), _prompts(6, 9)
    found = invariance(decoder, prompts)
    assert (found.prompts, found.tokens, [one.name for one in found.outputs]) == (6, 9, ["A", "A_LM", "A_P", "G"])
    read = [operators(decoder, prompt[None]) for prompt in prompts]
    for one in found.outputs:
        together = []
        for layer in range(2):
            x = np.stack([of_prompt[layer][one.name].numpy().flatten() for of_prompt in read])
            mean = sum(x) / 6
            ratios = [np.linalg.norm(row - mean) / np.linalg.norm(mean) for row in x]
            assert one.layers[layer].rms == pytest.approx(math.sqrt(np.mean(np.square(ratios))), rel=1e-9)
            assert one.layers[layer].largest == pytest.approx(max(ratios), rel=1e-9)
            together.append(x)
        x = np.concatenate(together, axis=1)
        ratios = [np.linalg.norm(row - x.mean(axis=0)) / np.linalg.norm(x.mean(axis=0)) for row in x]
        assert one.overall.rms == pytest.approx(math.sqrt(np.mean(np.square(ratios))), rel=1e-9)
        assert one.overall.largest == pytest.approx(max(ratios), rel=1e-9)
        assert one.overall.rms > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_operator_of_the_first_token_alone_does_not_vary(dtype):
    decoder = small_decoder(PLGA.model_copy(update={"density": DensitySpec(scope="prefix")})).to(dtype)
    for one in invariance(decoder, _prompts(7, 9)).outputs:
        assert (one.overall.rms, one.overall.largest) == (0.0, 0.0)
        assert one.layers == {0: Variation(0.0, 0.0), 1: Variation(0.0, 0.0)}


def test_figures_are_json_even_of_a_model_that_has_broken_down():
    decoder = small_decoder(PLGA)
    with torch.no_grad():
        decoder.mixers[1].operator.power.fill_(-1e9)
    found = json.loads(json.dumps(invariance(decoder, _prompts(3, 5)).figures(), allow_nan=False))
    assert found["A_P"]["variation"] is found["G"]["per_layer"][1]["largest"] is None
    assert found["G"]["per_layer"][0]["variation"] > 0


SEQUENCE = TokenSequence.in_memory("text", 0, np.array([0, 1, 2, 3, 0, 4, 5, 0, 6, 7, 8, 9, 0, 1, 1, 1, 0, 2, 2, 0]))


def test_prompts_are_beginnings_of_different_documents():
    found = document_prompts(SEQUENCE, 3, 4, seed=0)
    expected = {(0, 1, 2, 3), (0, 6, 7, 8), (0, 1, 1, 1)}
    assert {tuple(prompt) for prompt in found.tolist()} == expected
    assert len(document_prompts(SEQUENCE, 100, 4, seed=0)) == 3
    assert document_prompts(SEQUENCE, 2, 3, seed=5).equal(document_prompts(SEQUENCE, 2, 3, seed=5))
    drawn = {tuple(map(tuple, document_prompts(SEQUENCE, 2, 3, seed=seed).tolist())) for seed in range(20)}
    assert len(drawn) > 5


def test_documents_that_are_too_short_are_refused():
    with pytest.raises(UserError, match=r"tokens: 5: 1 documents of text .* longest has 5.*at least two"):
        document_prompts(SEQUENCE, 2, 5, seed=0)
    with pytest.raises(UserError, match="tokens: 2: 0 documents"):
        document_prompts(TokenSequence.in_memory("text", 0, np.array([0])), 2, 2, seed=0)
