import pytest

from linnet.core.errors import UserError
from linnet.data.mixture import PUBLISHED, MixtureSpec

TWO = {"books": {"weight": 1}, "code": {"weight": 3}}


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"sources": {}}, "sources: {}: must not be empty"),
        ({"sources": {"a": {"weight": 1, "epochs": 2}}}, "sources.a.weight: 1.0 and epochs: 2.0: give one of the two"),
        ({"sources": {"a": {"weight": 1}, "b": {}}}, "sources.b: no weight; a has one, so every source needs one"),
        ({"sources": {"a": {"epochs": 1}, "b": {}}}, "sources.b: no epochs; a has one, so every source needs one"),
        ({"sources": {"a": {"weight": 0}}}, "sources: every weight is 0; expected at least one above 0"),
        ({"sources": {"a": {"weight": -1}}}, "sources.a.weight: -1"),
        ({"sources": {"a": {"max_epochs": 0}}}, "sources.a.max_epochs: 0"),
        ({"sources": {"a": {"wieght": 1}}}, "sources.a.wieght: unknown key.*weight"),
        (
            {"sources": {"a": {"files": "x"}}},
            r"sources.a.files: unknown .*; did you mean inputs\? accepted: inputs, field,",
        ),
        ({"sources": {"a": {"share": 1}}}, r"sources.a.share: unknown .*; did you mean weight\? accepted: "),
        ({"datasets": {"a": {}}}, r"datasets: unknown .*; did you mean sources\? accepted: preset, by, sources"),
        ({"sources": TWO, "by": "lines"}, "by: 'lines': .*bytes.*tokens"),
        ({"sources": TWO, "preset": "palm"}, "sources.books.weight: cannot be combined with preset: palm"),
        ({"sources": {"poems": {}}, "preset": "palm"}, "sources.poems: not in preset: palm, which has webpages, books"),
        (
            {"sources": TWO, "curriculum": [{"after_step": 5, "weights": {"boks": 1}}]},
            r"curriculum\[0\].weights.boks: no such source; .*books",
        ),
        (
            {"sources": TWO, "curriculum": [{"after_step": 5, "weights": {"books": 0}}]},
            r"curriculum\[0\].weights: every weight is 0",
        ),
        (
            {"sources": TWO, "curriculum": [{"after_step": step, "weights": {"books": 1}} for step in (5, 5)]},
            "curriculum: after_step 5, 5: must ascend",
        ),
    ],
)
def test_a_mistake_is_one_line(plain: dict, message: str):
    with pytest.raises(UserError, match=f"^mixture.yaml: {message}") as failed:
        MixtureSpec.parse(plain, "mixture.yaml")
    assert "\n" not in str(failed.value)


def test_a_preset_gives_the_weights():
    mixture = MixtureSpec.parse({"preset": "llama", "sources": {"books": {}, "code": {}}}, "mixture.yaml")
    assert mixture.own_weights == {name: PUBLISHED["llama"][name] for name in ("books", "code")}
    assert all(0.99 < sum(weights.values()) < 1.02 for weights in PUBLISHED.values())
