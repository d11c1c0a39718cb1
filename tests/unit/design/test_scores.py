"""Scores of shapes: the parts of a model, their contributions, and the penalty for depth."""

import math

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.design.scores import (
    SCORES,
    Part,
    ScoreSettings,
    entropy,
    find_score,
    parts_of,
    penalty,
    sampled_entropy,
    score,
    width_term,
)
from linnet.model.cost import model_cost
from linnet.model.folder import preset_names
from linnet.model.spec import ModelSpec


@pytest.mark.parametrize("name", preset_names())
def test_the_parts_of_a_model_have_its_parameters_and_layers(name: str):
    spec = ModelSpec.load(name)
    parts, cost = parts_of(spec), model_cost(spec)
    assert sum(part.parameters for part in parts) == cost.parameters
    assert sum(part.depth for part in parts) == spec.layers


def test_a_narrow_embedding_and_its_projections_are_outside_the_decoder():
    spec = ModelSpec.load("opt-350m")
    outside = [part for part in parts_of(spec) if part.outside]
    assert [part.parameters for part in outside] == [512 * 50272 + 2048 * 1024 + 2 * 512 * 1024]


def test_shared_weights_count_once_and_their_maps_every_time():
    block = parts_of(ModelSpec.load("merino-52m"))[4]
    assert (block.depth, block.width) == (3, 512)
    assert block.mixer == ((512, 512),) * 4 * 3
    assert block.feed_forward == ((512, 512),) * 2 * 3
    assert block.parameters == 4 * 512**2 + 2 * (512**2 + 512) + 2 * 2 * 512


def test_the_entropy_of_a_decoder_is_the_weighted_sum_over_its_layers():
    spec = ModelSpec.load("gpt2-124m")
    layer = 0.6 * 4 * entropy(768, 768) + 0.4 * 2 * entropy(768, 3072)
    assert score(parts_of(spec), "entropy_beta_0") == pytest.approx(12 * layer)
    assert score(parts_of(spec), "entropy") == pytest.approx(12 * layer * (1 - 12 / 768 / 16))
    assert score(parts_of(spec), "entropy_beta_2") == pytest.approx(12 * layer * (1 - 2 * 12 / 768))


def test_settings_change_the_entropy():
    parts = [Part(1, 64, ((64, 64),), ((64, 128),), 0)]
    settings = ScoreSettings(alpha=(1.0, 0.0), sigma=0.5, eps=2.0, beta=0.0)
    assert score(parts, "entropy", settings) == entropy(64, 64, 0.5, 2.0)
    settings = ScoreSettings(alpha=(0.0, 2.0), beta=0.0, samples=2, seed=5)
    assert score(parts, "entropy_sampled", settings) == 2 * sampled_entropy(64, 128, 1.0, 1.0, 2, 5)


def test_parameters_with_and_without_embedding_and_head():
    spec = ModelSpec.load("merino-61m")
    cost, parts = model_cost(spec), parts_of(spec)
    assert score(parts, "parameters") == cost.parameters
    assert score(parts, "decoder_parameters") == cost.blocks.parameters
    width = (2 * 640 + 2 * 768 + 2 * 896 + 2 * 1024) / 8
    assert score(parts, "penalized_parameters") == pytest.approx(cost.blocks.parameters * (1 - 2 * 8 / width))


@pytest.mark.parametrize(
    ("definition", "width"), [("mean", (64 + 3 * 256) / 4), ("geometric", (64 * 256**3) ** 0.25), ("minimum", 64)]
)
def test_the_width_of_a_model_of_several(definition: str, width: float):
    parts = [Part(0, 512, (), (), 0), Part(1, 64, (), (), 100), Part(3, 256, (), (), 200)]
    settings = ScoreSettings(width=definition, beta=2.0)
    assert score(parts, "decoder_parameters", settings) == pytest.approx(300 * (1 - 2 * 4 / width))


def test_a_penalty_never_changes_the_sign_of_a_score():
    assert penalty(np.array([10.0, 1.0]), np.array([40.0, 4.0]), 1.0, "mean").tolist() == [0.0, 0.75]
    assert penalty(np.zeros(1), np.full(1, np.inf), 2.0, "minimum") == 1.0
    assert width_term(0, 64, "minimum") == math.inf


def test_the_error_of_an_unknown_score_lists_the_scores():
    assert find_score("entropy") is SCORES["entropy"]
    with pytest.raises(UserError, match="score: 'entrpy': did you mean entropy"):
        find_score("entrpy")
