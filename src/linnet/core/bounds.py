"""Bounds on what users may give, in one table: larger values are mistakes, take all memory, or break libraries.

Thresholds of an algorithm, such as the channels of a kernel, stay with the algorithm.
"""

# Numbers
MAX_INTEGER = 2**63 - 1
"""Largest whole number of a description; 64 bits hold it. It is also the largest seed."""
MAX_INTEGER_BITS = 100
"""Bits of a whole number in a file that is read."""
MAX_DIGITS = 400
"""Characters of a number in YAML."""
MAX_EXTENT = 1 << 16
"""Sizes computed at once, such as a side of a matrix: two such sides are a matrix of 17 GB."""
MAX_COUNT = 1 << 12
"""Things that are made or trained one by one: layers, shapes, batches of a step."""
MAX_AMOUNT = 1 << 48
"""Tokens, sequences and steps: more than all text that exists."""
MAX_VOCABULARY = 1 << 22
"""Tokens of a vocabulary; the largest in use have a million."""

# Files
MAX_YAML_BYTES = 1 << 20
"""A description: a thousand times the usual size."""
MAX_TEXT_BYTES = 256 << 20
"""A file that is read at once: five times a tokenizer with a million tokens."""
MAX_HASHED_BYTES = 64 << 30
"""A file that is hashed: more than any model that linnet reads."""
MAX_DEPTH, MAX_VALUES = 60, 200_000
"""Levels of nesting and values of a described structure; values that YAML aliases repeat are counted again."""
MAX_JSON_WEIGHTS_BYTES = 8 << 30
"""Weights in JSON, as some published code writes them."""

# Options
MAX_RESAMPLES = 10_000
"""Resamples of a bootstrap; more move the ends of an interval by less than a hundredth of its length."""
MAX_TEXTS = 1024
"""Texts of one prompt that are generated together."""
MAX_ABILITY_SHOTS, MAX_TASK_SHOTS = 64, 100
"""Examples before a question of an ability and before an item of a task."""
MAX_TASK_ITEMS = 1 << 20
"""Items of a task."""
MAX_SYNTHESISED = 100_000_000
"""Examples of a world in one file."""
MAX_VERIFIED_STEPS = 100_000
"""Steps of a test of resuming."""
MAX_THREADS_PER_PROCESSOR = 16
"""Threads for each processor of the machine."""
MAX_NGRAM_ORDER = 40
"""Tokens of the longest n-grams."""

# Search spaces
MAX_COUNTED_TOKENS = 10**12
"""Tokens for which the cost of a model is computed."""
MAX_SPACE_CHOICES = 20_000
"""Choices for one block of a search space."""
MAX_SPACE_BLOCKS, MAX_REPEATS, MAX_FFN_RATIO = 64, 1000, 1000
"""Blocks of a model in a search space, repeats of a block, and the ratio of the widths of a feed-forward layer."""
