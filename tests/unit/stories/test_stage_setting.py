from small_cast import BALL, HAT

from linnet.stories.stage import combine, split_of
from linnet.stories.vocabulary.places import PARK, POND


def test_settings_hold_no_thing_twice_and_split_by_their_text_alone() -> None:
    things = (BALL.thing, HAT.thing)
    pairs = combine((PARK, POND), things, things, topics=("a", "b"))
    assert len(pairs) == 2 * 2 * 2
    assert all(setting.things[0] != setting.things[1] for setting in pairs)
    shares = [split_of(("plot", str(number))) for number in range(2000)]
    assert 0.07 < shares.count("validation") / 2000 < 0.13
    assert split_of(("lost_and_found", "park", "ball", "")) == "train"
