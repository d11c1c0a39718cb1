"""Search spaces: from YAML to every distinct block, and to a model's description."""

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.design.space import SPACES, Space, load_space, space_names
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec


def test_merinos_space_is_that_of_the_papers_table():
    space = load_space("merino")
    assert len(space.plain) == 9 * 7 * 4
    assert space.size == 252**4
    shapes = {(block.width, block.feed_forward.hidden / block.width, block.repeat) for block in space.described}
    assert {ratio for _, ratio, _ in shapes} == {1, 1.5, 2, 2.5, 3, 3.5, 4}
    assert {width for width, _, _ in shapes} == {64, 128, 256, 384, 512, 640, 768, 896, 1024}
    assert {repeat for _, _, repeat in shapes} == {1, 2, 3, 4}
    assert all(block.mixer.heads == block.width // 64 for block in space.described)
    assert all(block.share_weights == (block.repeat > 1) for block in space.described)


def test_merinos_published_models_are_in_its_space():
    space = load_space("merino")
    described = [(block.width, block.feed_forward.hidden, block.repeat) for block in space.described]
    shape = [(640, 960, 3), (896, 1344, 3), (1024, 1024, 2), (1024, 1024, 3)]
    model = space.model([described.index(block) for block in shape])
    assert model_cost(model).parameters == model_cost(ModelSpec.load("merino-64m")).parameters


@pytest.mark.parametrize("name", space_names())
def test_models_of_built_in_spaces_run(name: str):
    space = load_space(f"{name}.yaml")
    smallest = min(
        range(len(space.plain)),
        key=lambda i: (space.plain[i][0]["width"], len(space.plain[i]), space.plain[i][0].get("repeat", 1)),
    )
    spec = space.model([smallest] * space.spec.blocks).replace(vocab_size=11)
    assert Decoder(spec)(torch.zeros(1, 5, dtype=torch.long)).shape == (1, 5, 11)


def test_the_mixed_space_has_every_mixer():
    kinds = {block.mixer.kind for block in load_space("mixed").described}
    assert kinds == {"attention", "plga", "ted"}


def test_choices_may_be_anywhere_and_nested(small_space):
    mixers = [{"kind": "attention", "kv_heads": [1, None]}, {"kind": "ted", "heads": [1, 2]}]
    space: Space = small_space(block={"mixer": mixers, "norm": {"kind": ["rms", "layer"]}, "repeat": 1, "width": 8})
    seen = {(block.mixer.kind, block.norm.kind) for block in space.described}
    assert seen == {(mixer, norm) for mixer in ("attention", "ted") for norm in ("rms", "layer")}
    assert len(space.plain) == 2 * 2 * 4  # ratios, norms, mixers with their own choices
    assert len(set(map(repr, space.plain))) == len(space.plain)
    assert set(space.numbers.values()) == set(range(len(space.plain)))


def test_coordinates_lead_to_their_blocks(small_space):
    space: Space = small_space()
    assert [space.numbers[where] for where in space.coordinates] == list(range(len(space.plain)))
    assert [choice.options for choice in space.choices] == [3, 2, 3]
    assert all(choice.ordered for choice in space.choices)


def test_invalid_combinations_are_left_out_and_counted(small_space):
    space: Space = small_space(block={"width": [8, 10, 16], "repeat": 1, "ratio": 1})
    assert [block.width for block in space.described] == [8, 16]
    assert space.left_out == (1, "head_width: 4: must divide the width 10")
    space = small_space(block={"width": [8, 12], "repeat": 1, "ratio": 1, "mixer": {"kind": "attention", "heads": 4}})
    assert space.left_out[0] == 1
    assert space.left_out[1].startswith("mixer.heads: 4: gives heads of width 3")


def test_a_head_width_sets_the_heads_of_every_mixer_with_that_field(small_space):
    mixers = [{"kind": "attention"}, {"kind": "ted"}, {"kind": "ted", "heads": 1}]
    space: Space = small_space(block={"mixer": mixers, "width": [8, 16], "repeat": 1, "ratio": 1})
    heads = {(block.mixer.kind, block.width, block.mixer.heads) for block in space.described}
    given = {("attention", 8, 2), ("attention", 16, 4), ("ted", 8, 2), ("ted", 16, 4), ("ted", 8, 1), ("ted", 16, 1)}
    assert heads == given


def test_a_mixer_that_fits_no_width_is_an_error(small_space):
    mixers = [{"kind": "ted", "heads": 1}, {"kind": "attention"}]
    with pytest.raises(UserError) as error:
        small_space(block={"mixer": mixers, "head_width": 5})
    assert str(error.value) == (
        "small: block.mixer: attention: fits no block; the first: head_width: 5: must divide the width 8"
    )


@given(st.data())
def test_a_description_is_that_of_the_chosen_blocks(small_space, data):
    space: Space = small_space()
    candidate = data.draw(st.lists(st.integers(0, len(space.plain) - 1), min_size=2, max_size=2))
    model = space.model(candidate, name="chosen")
    assert model.name == "chosen"
    assert list(model.blocks) == [space.described[block] for block in candidate]
    assert yaml.safe_load(yaml.safe_dump(space.describe(candidate)))["blocks"] == [space.plain[b][0] for b in candidate]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block": {"width": []}}, "small: block.width: []: expected at least one choice"),
        (
            {"block": {"color": "red"}},
            "small: block: color: unknown key (value 'red'); accepted: repeat, mixer, cross_attention, feed_forward,"
            " norm, residual, width, share_weights, ratio, head_width",
        ),
        ({"block": {"ratios": [1, 2]}}, "small: block: ratios: unknown key (value [1, 2]); did you mean ratio?"),
        (
            {"block": {"mixer": {"kind": ["attention", "atention"]}}},
            "small: block: mixer.kind: 'atention': must be one of",
        ),
        ({"block": {"ratio": [0]}}, "small: block.ratio: 0: must be a number greater than 0"),
        ({"block": {"ratio": [1, float("inf")]}}, "small: block.ratio: inf: must be a number greater than 0, at most"),
        ({"block": {"ratio": float("nan")}}, "small: block.ratio: nan: must be a number greater than 0, at most 1,000"),
        ({"block": {"feed_forward": None}}, "small: block.ratio: no block has a feed_forward; add one"),
        (
            {"block": {"feed_forward": {"kind": "mlp", "hidden": [8, 16]}}},
            "small: block.feed_forward.hidden: is decided by ratio; leave one of both out",
        ),
        ({"block": {"repeat": [1, 2000]}}, "small: block.repeat: 2000: must be at most 1,000"),
        ({"block": {"repeat": [1, 10**9]}}, "small: block: repeat: 1000000000: must be less than or equal to 4096"),
        ({"blocks": 10**8}, "small: blocks: 100000000: must be at most 64"),
        ({"block": {"head_width": 0.5}}, "small: block.head_width: 0.5: must be a whole number greater than 0"),
        (
            {"block": {"head_width": 5}},
            "small: block: no combination fits; the first: head_width: 5: must divide the width 8",
        ),
        (
            {"block": {"width": list(range(8, 80_008, 4))}},
            "small: block: has 120,000 combinations; expected at most 20,000",
        ),
        ({"model": {"blocks": []}}, "small: model.blocks: is decided by blocks and block; leave it out"),
        ({"model": {"d_modl": 3}}, "small: model: d_modl: unknown key (value 3); did you mean d_model?"),
        ({"blocks": 0}, "small: blocks: 0: must be greater than 0"),
        (
            {
                "block": {
                    "mixer": {
                        "kind": "attention",
                        "head_dim": 4,
                        "heads": 2,
                        "value_residual": {"learned": [True, False]},
                    }
                }
            },
            "small: block.mixer.value_residual: learned in some choices and fixed in others; choose one",
        ),
        ({"model": {"embedding": {"skip": True}}}, "small: block.width: 8: must be 16, that of the embedding, with"),
        (
            {"block": {"mixer": {"kind": "attention", "value_residual": {}}}},
            "small: block.mixer.value_residual: values of 4 x 4 (heads x width): must be of 2 x 4",
        ),
    ],
)
def test_a_mistake_is_one_line(small_space, changes: dict, message: str):
    with pytest.raises(UserError) as error:
        small_space(**changes)
    assert str(error.value).startswith(message)


def test_a_space_without_feed_forwards_needs_no_ratio_and_one_with_some_has_it(small_space):
    mixed: Space = small_space(
        block={"feed_forward": [None, {"kind": "mlp"}], "width": 8, "repeat": 1, "ratio": [1, 2]}
    )
    assert len(mixed.plain) == 3


def test_cross_layer_values_of_two_mixers_are_checked_separately(small_space):
    """Attention with fixed shares; RWKV-7, whose shares are always learned."""
    fixed = {"kind": "attention", "heads": 2, "head_dim": 4, "value_residual": {"learned": False}}
    mixers = [fixed, {"kind": "rwkv7", "heads": 2, "head_dim": 4}]
    space: Space = small_space(block={"mixer": mixers, "width": 8, "repeat": 1, "ratio": 1})
    assert {block.mixer.kind for block in space.described} == {"attention", "rwkv7"}


def test_the_error_of_an_unknown_space_lists_the_spaces(tmp_path):
    with pytest.raises(
        UserError, match=r"nowhere.yaml: no such file, and no space of that name; spaces: hybrid, merino, mixed"
    ):
        load_space("nowhere.yaml")
    (tmp_path / "list.yaml").write_text("[1]")
    with pytest.raises(UserError, match=r"list.yaml: expected a mapping with model, blocks, block, found list"):
        load_space(tmp_path / "list.yaml")


def test_a_file_takes_precedence_over_a_built_in_space(tmp_path, monkeypatch):
    (tmp_path / "merino.yaml").write_text((SPACES / "merino.yaml").read_text().replace("name: merino", "name: mine"))
    monkeypatch.chdir(tmp_path)
    assert load_space("merino.yaml").spec.name == "mine"
    assert load_space("merino").spec.name == "merino"


def test_a_single_layer_with_shared_weights_equals_one_without(small_space):
    space: Space = small_space(block={"share_weights": [True, False], "repeat": [1, 2], "width": 8, "ratio": 1})
    places = [choice.place for choice in space.choices]
    repeat, shared = places.index(("repeat",)), places.index(("share_weights",))
    single = [number for where, number in space.numbers.items() if where[repeat] == 0]
    assert {where[shared] for where in space.numbers if where[repeat] == 0} == {0, 1}
    assert len(set(single)) == 1
    assert len(space.plain) == 3
