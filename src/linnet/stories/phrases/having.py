"""Default phrasings of the events of having."""

from linnet.stories.events import (
    Break,
    Eat,
    Find,
    Give,
    Halve,
    Lend,
    Lose,
    Mend,
    Own,
    Return,
    Search,
    Snatch,
    StoryEvent,
    Trade,
)

HAVING: dict[type[StoryEvent], tuple[str, ...]] = {
    Own: (
        "{who} had {item.a}.",
        "{who} had {item.a} and loved {item.obj} very much.",
        "{who} had {item.a}. {who} took {item.obj} everywhere.",
    ),
    Lose: (
        "{who} put {item.it} down and ran off to play. When {who.pro} came back, {item} {item.was} gone!",
        "Then {who} sat down to rest. When {who.pro} got up, {item} {item.was} gone!",
        "{who} ran and jumped all day. When it was time to go home, {item} {item.was} gone!",
        "But {who} did not hold {item.it} tight. When {who.pro} looked again, {item} {item.was} not there.",
    ),
    Search: (
        "{who} looked {spot}, but {item} {item.was} not there.",
        "{who} looked {spot}. No {item.noun}!",
        "{who} looked {spot} and found nothing.",
        "Was it {spot}? No, {item} {item.was} not there.",
    ),
    Find: (
        "At last, {who} found {item} {spot}.",
        "Then {who} looked {spot}. There {item.was} {item}!",
        "Then {who} saw something {item.adjective} {spot}. It was {item}!",
    ),
    Give: (
        "{giver} gave {item} to {receiver.him}.",
        "{giver} gave {receiver.him} {item}.",
        "{giver} held out {item}, and {receiver} took {item.it} with a smile.",
    ),
    Lend: (
        "{giver} gave {item} to {receiver.him} for a while.",
        "{giver} let {receiver.him} have {item} for a while.",
    ),
    Return: (
        "{giver} gave {item} back to {receiver.him}.",
        "{giver} ran to {receiver.him} and gave {item} back.",
    ),
    Trade: (
        "So {who} gave {item} to {other.him} and took {other_item}.",
        "{who} and {other.np} traded. Now {who.name} had {other_item}, and {other.name} had {item}.",
    ),
    Snatch: ("{who} pulled {item} away from {other.him}.", "{who} took {item} from {other.him}."),
    Eat: (
        "{who} ate {item} together.",
        "Then {who} ate {item} side by side.",
    ),
    Halve: (
        "{giver} broke {item} in two and gave half to {receiver.him}.",
        "{giver} cut {item} in two. One half was for {giver.name}, and one half was for {receiver.name}.",
    ),
    Break: (
        "But then {item} hit a stone. Crack! {item} {item.was} broken.",
        "But {item} fell to the ground and broke.",
        "Then there was a loud crack. {item} {item.was} broken!",
    ),
    Mend: (
        "{who} fixed {item} with some glue.",
        "{who} fixed {item} with tape and string.",
        "{who} worked for a long time, and soon {item} {item.was} whole again.",
    ),
}
