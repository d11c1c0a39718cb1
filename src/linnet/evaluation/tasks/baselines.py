"""What a reader who knows nothing reaches on the items at hand: by the length of answers, or by their place."""

from collections.abc import Callable, Sequence

from linnet.evaluation.tasks.items import TaskItem


def baselines(items: Sequence[TaskItem]) -> dict[str, float]:
    """The score of taking the longest choice each time, the shortest, and the place that is right most often.

    Lengths are in UTF-8 bytes, of equal ones the first counts. The place (the letter of an answer) is chosen by the
    items themselves, so it is a little better than what could be known before.
    """
    places = max(len(item.choices) for item in items)
    return {
        "longest": _mean(items, lambda item: _extreme(item, max)),
        "shortest": _mean(items, lambda item: _extreme(item, min)),
        "letter": max(sum(_label(item, place) for item in items) for place in range(places)) / len(items),
    }


def _mean(items: Sequence[TaskItem], choose: Callable[[TaskItem], int]) -> float:
    return sum(item.labels[choose(item)] for item in items) / len(items)


def _extreme(item: TaskItem, of: Callable[[list[int]], int]) -> int:
    lengths = [len(choice.encode()) for choice in item.choices]
    return lengths.index(of(lengths))


def _label(item: TaskItem, place: int) -> int:
    return item.labels[place] if place < len(item.labels) else 0
