"""Long sequences a segment at a time, so that what lies between inputs and outputs stays in the processor's cache."""

SEGMENT_NUMBERS = 2**18
"""Numbers of a segment on a processor: 1 MiB in float32."""

SEGMENT_NUMBERS_DEVICE = 2**24
"""The same on a GPU, where the number of steps counts."""


def segment_length(batch: int, numbers: int, chunk: int, device: str = "cpu") -> int:
    """Tokens of a segment, in whole chunks of `chunk` tokens, of rows with so many numbers for each token."""
    most = SEGMENT_NUMBERS if device == "cpu" else SEGMENT_NUMBERS_DEVICE
    return chunk * max(1, most // max(1, batch * chunk * numbers))


def segment_slices(length: int, segment: int) -> list[slice]:
    """Of the segments of a sequence; the last may be shorter."""
    return [slice(begin, min(begin + segment, length)) for begin in range(0, length, segment)]
