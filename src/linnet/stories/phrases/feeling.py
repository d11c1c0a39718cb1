"""Phrasings of feelings, with and without their cause."""

FEELINGS: dict[str, tuple[str, ...]] = {
    "happy": (
        "{who} {who.was} very happy.",
        "{who} could not stop smiling.",
        "{who} {who.was} so happy that {who.pro} jumped up and down.",
        "{who} laughed with joy.",
    ),
    "sad": (
        "{who} {who.was} very sad.",
        "{who} felt sad and began to cry.",
        "{who} wanted to cry.",
    ),
    "angry": ("{who} {who.was} angry.", "{who} {who.was} very mad."),
    "proud": ("{who} felt very proud.", "{who} {who.was} so proud.", "{who} {who.was} proud and happy."),
    "tired": ("{who} {who.was} very tired.", "{who} felt tired."),
    "excited": ("{who} {who.was} very excited.", "{who} could not wait."),
    "surprised": ("{who} {who.was} very surprised.", "{who} could not believe {who.own} eyes."),
    "lonely": ("{who} felt lonely.", "{who} {who.was} all alone."),
    "worried": ("{who} {who.was} worried.", "{who} {who.was} very worried."),
    "shy": ("{who} {who.was} shy.", "{who} felt very shy."),
    "jealous": ("{who} felt a little jealous.", "{who} {who.was} a little jealous."),
    "brave": ("{who} felt brave.", "Now {who} felt very brave."),
    "hungry": ("{who} {who.was} very hungry.", "{who} felt hungry."),
    "bored": ("{who} {who.was} bored.", "{who} did not know what to do."),
}

CAUSE_CLAUSES = {
    "lost": "{item} {item.was} gone",
    "broken": "{item} {item.was} broken",
    "back": "{item} {item.was} back",
    "rain": "it was raining",
    "alone": "{who.pro} had no one to play with",
}


def feeling_phrasings(feeling: str, because: str) -> tuple[str, ...]:
    """How to tell a feeling; with a cause, the cause is told."""
    if not because:
        return FEELINGS[feeling]
    clause = CAUSE_CLAUSES[because]
    return (
        f"{{who}} {{who.was}} {feeling} because {clause}.",
        f"{{who}} felt {feeling} because {clause}.",
    )
