"""Modified Kneser-Ney from its definition (Chen and Goodman, 1999), with dictionaries and exact fractions."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction

START, END = "<s>", 0
FALLBACK = (Fraction(1, 2), Fraction(1), Fraction(3, 2))

Gram = tuple[object, ...]


class Reference:
    """`documents`: lists of tokens 1 to `vocab_size - 1`; token 0 is the end, and stands as START before the first."""

    def __init__(self, documents: Sequence[Sequence[int]], vocab_size: int, order: int) -> None:
        self.vocab_size, self.order = vocab_size, order
        seen: list[Counter[Gram]] = [Counter() for _ in range(order + 1)]
        for document in documents:
            text = [START, *document, END]
            for length in range(1, order + 1):
                for place in range(len(text) - length + 1):
                    gram = tuple(text[place : place + length])
                    if gram != (START,):
                        seen[length][gram] += 1
        self.adjusted = [self._adjusted(seen, length) for length in range(order + 1)]
        self.discounts = [discounts(counts.values()) for counts in self.adjusted]
        self.behind: list[dict[Gram, Counter[object]]] = [defaultdict(Counter) for _ in range(order + 1)]
        for length, counts in enumerate(self.adjusted):
            for gram, count in counts.items():
                self.behind[length][gram[:-1]][gram[-1]] = count

    def _adjusted(self, seen: list[Counter[Gram]], length: int) -> Counter[Gram]:
        if length in (0, self.order):
            return seen[length]
        before: dict[Gram, set[object]] = defaultdict(set)
        for gram in seen[length + 1]:
            before[gram[1:]].add(gram[0])
        return Counter({gram: count if gram[0] == START else len(before[gram]) for gram, count in seen[length].items()})

    def probability(self, token: int, context: Gram) -> Fraction:
        """Of a token behind the last `order - 1` tokens of its document, START included."""
        length = len(context) + 1
        lower = self.probability(token, context[1:]) if context else Fraction(1, self.vocab_size)
        counts = self.behind[length].get(context)
        if not counts:
            return lower
        total = sum(counts.values())
        taken = {word: self._taken(length, count) for word, count in counts.items()}
        own = counts[token] - taken[token] if token in counts else Fraction(0)
        return own / total + sum(taken.values()) / total * lower

    def _taken(self, length: int, count: int) -> Fraction:
        return self.discounts[length][min(count, 3) - 1]

    def context(self, text: Sequence[int]) -> Gram:
        """What of a document so far a prediction sees."""
        whole = (START, *text)
        return whole[len(whole) - min(len(whole), self.order - 1) :]


def discounts(counts) -> tuple[Fraction, ...]:
    """Equation 26, or the fallback where it has no values within bounds."""
    counts = list(counts)
    n = [Fraction(sum(count == k for count in counts)) for k in range(5)]
    if not (n[1] and n[2] and n[3]):
        return FALLBACK
    share = n[1] / (n[1] + 2 * n[2])
    found = tuple(k - (k + 1) * share * n[k + 1] / n[k] for k in (1, 2, 3))
    return found if all(0 < amount <= k for k, amount in enumerate(found, start=1)) else FALLBACK
