"""What attention costs between its maps: scores, weighted sums, keys and values as state, what training keeps."""

from dataclasses import dataclass
from functools import partial

import torch

from linnet.layers.value_residual import ValuesRead
from linnet.nn.cost import Cost
from linnet.nn.norms import NormKind
from linnet.ops.attention import uses_blocks, windowed_pairs
from linnet.ops.blocked_attention import blocked_is_faster, blocked_pairs


@dataclass(frozen=True)
class AttentionShape:
    """What the cost of the attention between the maps depends on. Kept is what is kept on a CPU in float32.

    norm: of queries and keys, by its kind. values: that are read: a token's own, or mixed with others. no_kernel:
    whether scores are what PyTorch's kernel does not have, and so computed in blocks, whatever the length.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary: bool
    norm: NormKind | None = None
    values: ValuesRead = "own"
    no_kernel: bool = False

    def cost(self, whole: bool = False) -> Cost:
        """Over all of the past, or all of the row. Kept are the joint projection, what was turned, the result; maybe a
        number per head.
        """
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return Cost(
            flops_per_pair=4 * queries,
            state_elements_per_token=2 * keys,
            state_narrow_per_token=0 if self.no_kernel else 2 * keys,
            activations_per_token=(queries + 2 * keys) * self._keeps_joint
            + (queries + keys) * self.rotary
            + keys * (self.values != "own")
            + self._kept_by_norm()
            + queries,
            activation_memory=(partial(self._kept_by_softmax, whole),),
        )

    def _kept_by_softmax(self, whole: bool, sequences: int, tokens: int) -> int:
        """PyTorch's kernel keeps a number for each query; in blocks, which serve what is causal, nothing is kept. Of a
        whole row with distances the weights are kept.
        """
        if whole:
            return sequences * tokens * self.heads * (tokens if self.no_kernel else 1)
        return 0 if self.no_kernel or blocked_is_faster(tokens, torch.float32) else sequences * tokens * self.heads

    @property
    def _keeps_joint(self) -> bool:
        """But where nothing of the joint projection is read as it is."""
        copied = self.rotary or self.norm == "rms"
        return self.values != "fixed" or self.norm == "layer" or not copied

    def _kept_by_norm(self) -> int:
        """`rms` keeps its output and a number per head; `layer` its input, of the joint projection, and two numbers."""
        heads = self.heads + self.kv_heads
        if self.norm is None:
            return 0
        if self.norm == "rms":
            return heads * (self.head_dim + 1)
        return heads * (2 + (0 if self.rotary else self.head_dim))

    def windowed_cost(self, window: int, sink_tokens: int = 0) -> Cost:
        """Over a window and the `sink_tokens` first tokens, in blocks where the sequence is long."""
        flops, kept = partial(self._flops, window, sink_tokens), partial(self._kept, window)
        state = 2 * self.kv_heads * self.head_dim * (window + sink_tokens)
        return Cost(flops_by_length=(flops,), activation_memory=(kept,), state_elements=state)

    def _flops(self, window: int, sink_tokens: int, tokens: int) -> int:
        pairs = blocked_pairs(tokens, window, sink_tokens) if self.no_kernel else windowed_pairs(tokens, window)
        return 4 * self.heads * self.head_dim * pairs

    def _kept(self, window: int, sequences: int, tokens: int) -> int:
        """In blocks: queries, results, keys and values with their neighbors, masks; else as above with one mask."""
        if self.no_kernel:
            return sequences * tokens * self.cost().activations_per_token
        if not uses_blocks(tokens, window):
            mask = tokens * tokens if tokens > window else 0
            softmax = sequences * tokens * self.heads if mask else self._kept_by_softmax(False, sequences, tokens)
            return sequences * tokens * self.cost().activations_per_token + softmax + mask
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        whole = -(-tokens // window) * window
        cut = tokens * queries if whole > tokens else 0
        return sequences * (whole * (2 * queries + 4 * keys + self.heads + 2 * window) + cut + tokens * self._before())

    def _before(self) -> int:
        """Of a token before the blocks, which are copies: what its norm keeps, and the joint projection if it is read
        by a `layer` norm or by shares of values that are learned.
        """
        joint = (self.heads + 2 * self.kv_heads) * self.head_dim
        normed = 2 * (self.heads + self.kv_heads) if self.norm == "layer" else self._kept_by_norm()
        return normed + joint * (self.norm == "layer" or self.values == "learned")
