"""What is said in the common acts of speech, and how a line is set into a sentence."""

from functools import cache

LINES: dict[str, tuple[str, ...]] = {
    "greet stranger": (
        "Hello! I am {speaker.name}. What is your name?",
        "Hi! My name is {speaker.name}. Who are you?",
    ),
    "tell name": ("I am {speaker.name}.", "My name is {speaker.name}."),
    "thank": (
        "Thank you, {hearer.name}!",
        "Thank you so much, {hearer.name}!",
        "Thank you, {hearer.name}. You are very kind.",
    ),
    "lost it": (
        "I lost my {item.noun}. Can you help me?",
        "My {item.noun} is gone! Will you help me find it?",
    ),
    "promise help": (
        "Of course! Let's look together.",
        "Do not worry, {hearer.name}. I will help you.",
        "Yes, I will help you.",
    ),
    "found it": ("Look! Here is your {item.noun}!", "I found it! I found your {item.noun}!"),
    "ask what is wrong": (
        "What is wrong, {hearer.name}?",
        "Why are you so sad, {hearer.name}?",
    ),
    "encourage": (
        "You can do it, {hearer.name}!",
        "Do not give up, {hearer.name}. Try again!",
        "I know you can do it, {hearer.name}.",
    ),
    "rejoice": ("I did it! I did it!", "Look, {hearer.name}! I can do it!"),
    "praise": ("Well done, {hearer.name}!", "I am so proud of you, {hearer.name}!", "Good job, {hearer.name}!"),
    "broke it": ("My {item.noun} is broken.", "Look, my {item.noun} is broken!"),
    "whole again": ("Look! It is as good as new!", "See? Now it is as good as new."),
}

_SHOUTED = frozenset({"found it", "rejoice"})


@cache
def spoken(lines: tuple[str, ...], act: str, has_hearer: bool) -> tuple[str, ...]:
    """Every way to set the lines into a sentence with its speaker: before or after, with the hearer or without."""
    return tuple(sentence for line in lines for sentence in _settings(line, act in _SHOUTED, has_hearer))


def _settings(line: str, shouted: bool, has_hearer: bool) -> list[str]:
    verb = "asked" if line.endswith("?") else "shouted" if shouted and line.endswith("!") else "said"
    inner = f"{line[:-1]}," if line.endswith(".") else line
    settings = [
        f'"{inner}" {verb} {{speaker.np}}.',
        f'"{inner}" {{speaker}} {verb}.',
        f'{{speaker}} {verb}, "{line}"',
    ]
    if has_hearer and not shouted and "{hearer" not in line:
        to = "asked {hearer.him}" if verb == "asked" else "said to {hearer.him}"
        settings.append(f'{{speaker}} {to}, "{line}"')
    return settings
