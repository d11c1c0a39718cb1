"""Plots about making and growing: a present made by hand, a plant grown from a seed."""

from linnet.stories.endings import close
from linnet.stories.entities import Character, Item, Thing
from linnet.stories.events import Enter, Feel, Find, Get, Give, Go, Lie, Make, NextDay, Plant
from linnet.stories.openings import begin, introduce
from linnet.stories.stage import Setting, Stage, combine, plot
from linnet.stories.vocabulary.places import FARM, GARDEN, HILL, HOME, YARD
from linnet.stories.vocabulary.situations import CRAFTS, SEEDS, TREASURE_PLACES
from linnet.stories.vocabulary.things import BY_NOUN


def _presents() -> list[Setting]:
    crafts = [craft.thing for craft in CRAFTS.values()]
    return [
        setting
        for treasure, places in TREASURE_PLACES.items()
        for setting in combine(places, crafts, (BY_NOUN[treasure],))
    ]


@plot(_presents())
def gift(stage: Stage) -> None:
    """A present is made by hand, adorned with something found, and given."""
    hero, present, treasure = stage.hero(), stage.item(0), stage.item(1)
    receiver = stage.parent(hero) if stage.chance(0.6) else stage.friend(hero)
    craft = CRAFTS[present.noun]
    stage.roles |= {"receiver": receiver, "present": present, "treasure": treasure, "craft": craft.verb}
    introduce(stage, hero)
    stage.know(Enter((receiver,), HOME))
    stage.do(
        (hero,),
        "plan",
        "It was the birthday of {receiver.np}, and {who.name} wanted to make a gift.",
        "{who} wanted to {craft.base} {present.a} for {receiver.np}.",
    )
    _find_treasure(stage, hero, treasure)
    stage.paragraph()
    _make_present(stage, hero, present)
    _give_present(stage, hero, receiver, present)
    stage.tell(Feel((hero,), "proud"))
    close(stage, (hero,), ("a gift made with love is the best gift", "it is fun to make things for others"))


def _give_present(stage: Stage, hero: Character, receiver: Character, present: Item) -> None:
    stage.tell(
        Give(hero, receiver, present),
        "Then {giver} gave {item} to {receiver.np}.",
        "{giver} ran to {receiver.np} with {item}.",
    )
    stage.say(
        hero, receiver, "present", "This is for you!", "Happy birthday! I made it for you.", "I made this for you!"
    )
    stage.paragraph()
    if stage.chance(0.4):
        stage.tell(Feel((receiver,), "surprised"))
    stage.tell(
        Feel((receiver,), "happy"), "{who} smiled a big smile.", "{who} was so happy.", "{who} loved it very much."
    )
    stage.say(
        receiver, hero, "thank", "Thank you, {hearer.name}! It is so pretty.", "It is the best gift ever! Thank you!"
    )


def _find_treasure(stage: Stage, hero: Character, treasure: Item) -> None:
    spot = stage.pick(stage.place.spots)
    stage.know(Lie(treasure, stage.place, spot))
    stage.tell(
        Go((hero,), stage.place),
        "So {who} went {place.to} to look for something pretty.",
        "First, {who} went {place.to}.",
    )
    stage.tell(Find(hero, treasure, spot), "{who} found {item.a} {spot}.", "There {who} saw {item.a} {spot}.")
    stage.say(hero, None, "exclaim", "This is just right!", "How pretty!", "I can use this!")


def _make_present(stage: Stage, hero: Character, present: Item) -> None:
    stage.tell(
        Go((hero,), HOME), "{who} ran home and sat down at the table.", "Then {who} went home and began to work."
    )
    stage.tell(
        Make((hero,), present),
        "{who} {craft.past} {item.a} and put {treasure} on it.",
        "With paper and glue, {who} {craft.past} {item.a}. {treasure} went right on top.",
    )
    if stage.chance(0.4):
        stage.do((hero,), "work", "It took a long time, but {who} did not stop.", "It was hard work, but it was fun.")


PESTS: dict[str, tuple[str, str]] = {
    "birds": (
        "some birds came to eat the little plant.",
        "{who} made a funny man from sticks, and the birds flew away.",
    ),
    "sun": ("it was very hot, and the little plant looked dry.", "{who} gave it more water every day."),
    "wind": ("a strong wind blew, and the little plant bent down.", "{who} tied the plant to a stick."),
    "snail": ("a snail began to eat the leaves.", "{who} put the snail in the long grass, far away."),
}
"""What threatens a young plant, and what the gardener does."""

_GARDENS = (GARDEN, YARD, FARM, HILL)


@plot(combine(_GARDENS, topics=[f"{seed} and {pest}" for seed in SEEDS for pest in PESTS]))
def planting(stage: Stage) -> None:
    """A seed is planted, cared for against a threat, and grows."""
    seed_name, pest = stage.setting.topic.split(" and ")
    plant, praise = SEEDS[seed_name]
    hero = stage.hero()
    parent = stage.parent(hero)
    seed = Item(Thing("seed", ("tiny", "small", "brown")), stage.pick(("tiny", "small", "brown")))
    stage.roles["seed"] = seed
    begin(stage, (hero, parent))
    stage.know(Get(parent, seed))
    stage.tell(Give(parent, hero, seed), "There {giver} gave {receiver.him} {item.a}.")
    stage.say(
        parent,
        hero,
        "explain",
        f"Put it in the ground and give it water. It will grow into {plant}.",
        "Let's plant it and see what grows.",
    )
    stage.tell(Plant((hero,), seed), "{who} made a hole and put {item} in the ground.")
    _wait(stage, hero, pest)
    stage.paragraph()
    stage.tell(NextDay(), f"At last, there was {plant}! {praise}", f"Then, one morning, there was {plant}. {praise}")
    stage.say(hero, parent, "show", "Look, {hearer.name}! Look what I grew!", "I grew it all by myself!")
    stage.tell(Feel((hero,), "proud"))
    close(stage, (hero, parent), ("good things take time", "little things can grow big"), ("took care of the plants",))


def _wait(stage: Stage, hero: Character, pest: str) -> None:
    stage.do((hero,), "water", "Every day, {who} gave it water and waited.", "{who} came every day with water.")
    if stage.chance(0.5):
        stage.say(hero, None, "wonder", "When will it grow?", "Why is it so slow?")
    stage.paragraph()
    stage.know(NextDay())
    stage.do(
        (hero,),
        "see a leaf",
        "One morning, {who} saw a little green leaf.",
        "After a week, a green leaf came out of the ground.",
    )
    threat, remedy = PESTS[pest]
    stage.do((hero,), f"see {pest}", f"But then {threat}")
    stage.do((hero,), f"deal with {pest}", remedy)
