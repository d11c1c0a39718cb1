"""Laws: their formulas, their optimum, and the constants that were published."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.scaling.law import PF_DAY_FLOPS, ParametricLaw, published_laws, read_law

NAMES = ["chinchilla", "kaplan", "replication"]

exponents = st.floats(0.15, 0.9)
laws = st.builds(
    ParametricLaw, E=st.floats(0.1, 3), A=st.floats(1, 5000), B=st.floats(1, 5000), alpha=exponents, beta=exponents
)


@pytest.mark.parametrize(
    ("parameters", "tokens", "of_size", "of_text"), [(280e9, 300e9, 0.052, 0.251), (70e9, 1.4e12, 0.083, 0.163)]
)
def test_chinchilla_gives_gopher_and_chinchilla_their_losses(parameters, tokens, of_size, of_text):
    law = read_law("chinchilla")
    assert law.loss(parameters, tokens) == pytest.approx(1.69 + of_size + of_text, abs=1e-3)
    assert law.lowest_loss(parameters=parameters) == pytest.approx(1.69 + of_size, abs=1e-3)
    assert law.lowest_loss(tokens=tokens) == pytest.approx(1.69 + of_text, abs=1e-3)


def test_the_replication_would_have_trained_chinchilla_as_it_was_trained():
    """Besiroglu et al.: with the corrected fit, about 20 tokens for each parameter at Chinchilla's budget."""
    best = read_law("replication").best(flops=5.76e23)
    assert best.parameters == pytest.approx(70e9, rel=0.05)
    assert best.tokens / best.parameters == pytest.approx(20, rel=0.1)


@pytest.mark.parametrize("name", ["chinchilla", "replication"])
def test_the_optimum_is_that_of_the_paper(name: str):
    law = read_law(name)
    assert isinstance(law, ParametricLaw)
    g = (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta))
    best = law.best(flops=1e21)
    assert best.parameters == pytest.approx(g * (1e21 / 6) ** (law.beta / (law.alpha + law.beta)))
    assert best.tokens == pytest.approx((1e21 / 6) ** (law.alpha / (law.alpha + law.beta)) / g)


def test_kaplan_has_the_published_constants():
    law = read_law("kaplan")
    assert law.lowest_loss(parameters=1e9) == pytest.approx((8.8e13 / 1e9) ** 0.076)
    assert law.lowest_loss(tokens=1e10) == pytest.approx((5.4e13 / 1e10) ** 0.095)
    assert law.lowest_loss(flops=PF_DAY_FLOPS) == pytest.approx(3.1e8**0.05)
    assert law.loss(1e9, 1e10) == pytest.approx(((6.4e13 / 1e9) ** (0.076 / 0.103) + 1.8e13 / 1e10) ** 0.103)
    assert law.best(flops=PF_DAY_FLOPS).parameters == pytest.approx(1.3e9)
    assert law.best(flops=100 * PF_DAY_FLOPS).parameters == pytest.approx(1.3e9 * 100**0.73)
    assert law.counted == "without_embedding"


@given(laws, st.floats(1e12, 1e25), st.floats(0.5, 2))
def test_no_other_size_is_better_for_the_same_flops(law: ParametricLaw, flops: float, factor: float):
    best = law.best(flops=flops)
    assert best.flops == pytest.approx(flops)
    other = law.loss(best.parameters * factor, best.tokens / factor)
    assert other >= law.lowest_loss(flops=flops) * (1 - 1e-12)


@given(st.sampled_from(NAMES), st.floats(1e14, 1e25))
def test_size_tokens_and_flops_lead_to_each_other(name: str, flops: float):
    law = read_law(name)
    best = law.best(flops=flops)
    for again in (law.best(parameters=best.parameters), law.best(tokens=best.tokens)):
        assert again.parameters == pytest.approx(best.parameters, rel=1e-6)
        assert again.tokens == pytest.approx(best.tokens, rel=1e-6)


def test_every_published_law_has_its_source_and_its_sizes():
    assert [law.name for law in published_laws()] == NAMES
    for law in published_laws():
        assert "arXiv" in law.source
        assert law.sizes is not None
        assert law.sizes[0] < law.sizes[1]


def test_a_file_needs_only_the_five_constants(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"E": 1.5, "A": 100, "B": 200, "alpha": 0.3, "beta": 0.4}')
    law = read_law(path)
    assert law.name == "mine"
    assert law.loss(1e6, 1e7) == pytest.approx(1.5 + 100 / math.exp(0.3 * math.log(1e6)) + 200 / 1e7**0.4)
    assert law.sizes is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "expected a mapping with E, A, B, alpha, beta, found list"),
        ('{"E": 1}', "A: missing, a value is required"),
        ('{"E": 1, "A": 0, "B": 1, "alpha": 1, "beta": 1}', "A: 0: must be greater than 0"),
        ('{"E": 1, "A": 1, "B": 1, "alhpa": 1, "beta": 1}', "alhpa: unknown key (value 1); did you mean alpha?"),
        ('{"form": "cubic"}', "form: 'cubic': must be one of parametric, kaplan"),
        ("{", "line 1: not valid JSON"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_file_and_field(text: str, message: str, tmp_path):
    path = tmp_path / "law.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_law(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"A": 4e302, "alpha": 0.01, "beta": 1e-3},
        {"A": 800, "alpha": 1e-320, "beta": 1e-320},
        {"alpha": 44.0, "beta": 1e-6},
    ],
)
def test_an_optimum_beyond_the_range_of_numbers_is_one_line(changes: dict[str, float]):
    law = ParametricLaw.parse(
        {"name": "odd", "E": 1.7, "A": 400, "B": 400, "alpha": 0.3, "beta": 0.3, **changes}, "odd"
    )
    with pytest.raises(
        UserError, match=r"law: odd: the best size and tokens for 1e\+09 parameters are beyond the range"
    ):
        law.best(parameters=1e9)


def test_odd_constants_have_a_loss():
    law = ParametricLaw(name="steep", E=1.5, A=4e302, B=1e300, alpha=44, beta=44)
    assert law.loss(1e15, 1e16) == 1.5 and math.isfinite(law.best(flops=1e18).parameters)
    flat = ParametricLaw(name="flat", E=1.5, A=2, B=3, alpha=1e-320, beta=1e-320)
    assert flat.loss(1e15, 1e16) == 6.5
    assert list(law.loss(np.array([1e15]), np.array([1e16]))) == [1.5]


def test_an_unknown_name_lists_the_laws():
    with pytest.raises(
        UserError, match="law: gopher: no such file, and no law of that name; laws: chinchilla, kaplan,"
    ):
        read_law("gopher")
