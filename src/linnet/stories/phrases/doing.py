"""Default phrasings of the events of place, time and action."""

from linnet.stories.events import (
    Befriend,
    Comfort,
    MakeUp,
    Meet,
    PlayWith,
    Quarrel,
    StartRace,
    StoryEvent,
    Want,
)

DOING: dict[type[StoryEvent], tuple[str, ...]] = {
    Meet: (
        "Then {who} saw {other.him}.",
        "Just then, {other} came by.",
        "Soon {who} met {other.him}.",
    ),
    PlayWith: (
        "{who} {item.used} {item.it} for a long time.",
        "{who} {item.used} {item.it} and laughed.",
        "It was fun to {item.use} {item.it}.",
    ),
    StartRace: ('"One, two, three, go!" And off {who.pro} ran.', "{who} ran as fast as {who.pro} could."),
    Want: ("{who} wanted {item} too.", "{who} liked {item} and wanted to have {item.it}."),
    Comfort: ("{who} gave {other.him} a big hug.", "{who} held {other.him} tight."),
    Quarrel: ("{who.np} and {other.np} were very angry.", "{who.np} and {other.np} began to shout."),
    MakeUp: ("{who.np} and {other.np} hugged and were friends again.",),
    Befriend: (
        "From that day on, {who} were best friends.",
        "{who} became good friends.",
        "And so {who} became best friends.",
    ),
}
