"""Decode states of texts that were read before, found by their tokens, so that a common beginning is read once.

A store is one radix tree over token ids for each key (`prefix_key`). A node stands for the tokens of its edge and holds
what the layers store for each of them (keys and values, `State.room`), so that texts with a common beginning share it.
What depends on all tokens so far (sums, convolution inputs) is a snapshot at the end of a node.

A state that can be cropped (`DecoderState.can_crop`) serves every prefix of a stored text. A state that cannot be
cropped, because some layer sums over the text, serves only the positions of its snapshots.
"""

import weakref
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from linnet.core.checksum import digest
from linnet.core.errors import check_whole
from linnet.layers.batch_layout import Counts, Memory
from linnet.layers.state import State
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

TOKEN_TYPE = "q"
"""The type of token ids in an edge, with 8 bytes each."""


@dataclass
class PrefixCounters:
    """What a store has done so far.

    hits, misses: calls of `find`. tokens_saved, tokens_read: of the texts that were looked up, the tokens that a state
    had read, and the others. inserted, dropped, refused: states; a state is refused if it is larger than the store.
    """

    hits: int = 0
    misses: int = 0
    tokens_saved: int = 0
    tokens_read: int = 0
    inserted: int = 0
    dropped: int = 0
    refused: int = 0


@dataclass(eq=False)
class _Node:
    """The tokens from its parent's end to its own.

    places: for each sublayer, what is stored for each token of the edge, by field. snapshot: the state at the end
    without places; None for a mere branch, and where a later node's state can be cropped to it.
    """

    edge: "array[int]"
    end: int = 0
    parent: Self | None = None
    places: list[dict[str, Tensor]] = field(default_factory=list)
    snapshot: DecoderState | None = None
    children: dict[int, Self] = field(default_factory=dict)

    @property
    def snapshot_nbytes(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.nbytes

    @property
    def edge_nbytes(self) -> int:
        """Bytes of the edge's tokens and of their places."""
        return self.edge.itemsize * len(self.edge) + sum(x.nbytes for fields in self.places for x in fields.values())

    def path(self) -> "list[_Node]":
        """The nodes below the root, down to this one."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass(frozen=True)
class _Match:
    """How far a text is in the tree: `length` tokens, which end at the end of `node` or within its edge."""

    node: _Node
    length: int


class PrefixStore:
    """States by the tokens that they have read, at most `max_bytes` of them; the least recently used go first."""

    def __init__(self, max_bytes: int, snapshot_tokens: int = 256) -> None:
        """snapshot_tokens: who reads a text should insert its state every so many tokens, if it cannot be cropped.

        `UserError` for what is no whole number from 1 on.
        """
        for name, value in (("max_bytes", max_bytes), ("snapshot_tokens", snapshot_tokens)):
            check_whole(name, value, 1)
        self.max_bytes, self.snapshot_tokens = max_bytes, snapshot_tokens
        self.nbytes = 0
        self.counters = PrefixCounters()
        self._roots: dict[Hashable, _Node] = {}
        self._by_use: OrderedDict[_Node, None] = OrderedDict()  # the least recently used node is the first

    def __len__(self) -> int:
        """The number of states that are stored as such; cropped, each may serve many texts."""
        return sum(node.snapshot is not None for node in self._by_use)

    def longest(self, tokens: Sequence[int], key: Hashable) -> int:
        """The length in tokens of the prefix that `find` would return; nothing is counted or copied."""
        found = self._serving(tokens, key)
        return 0 if found is None else found[0].length

    def find(self, tokens: Sequence[int], key: Hashable, capacity: int = 0) -> tuple[DecoderState, int] | None:
        """A state that has read as many of the first tokens as possible, and how many; None if there is none.

        The state is a copy with room for `capacity` tokens, at least those read. The caller continues with the next
        token; who needs the logits of the last token passes the tokens before it.
        """
        found = self._serving(tokens, key)
        counters = self.counters
        if found is None:
            counters.misses, counters.tokens_read = counters.misses + 1, counters.tokens_read + len(tokens)
            return None
        match, snapshot = found
        path = match.node.path()
        self._touch(path)
        counters.hits, counters.tokens_saved = counters.hits + 1, counters.tokens_saved + match.length
        counters.tokens_read += len(tokens) - match.length
        return _assembled(path, snapshot, match.length, max(capacity, match.length)), match.length

    def snapshots(self, tokens: Sequence[int], key: Hashable) -> list[tuple[int, DecoderState]]:
        """The snapshots on the way of a text, without places for tokens, and the number of tokens of each."""
        root = self._roots.get(key)
        if root is None:
            return []
        match = self._match(root, tokens)
        path = match.node.path()
        return [(node.end, node.snapshot) for node in path if node.snapshot is not None and node.end <= match.length]

    def insert(self, tokens: Sequence[int], state: DecoderState, key: Hashable) -> None:
        """Store a copy of the state of one stream that has read exactly `tokens`."""
        assert state.positions == (len(tokens),) and tokens, "the state of one stream, and the tokens that it has read"
        root = self._roots.get(key) or _Node(array(TOKEN_TYPE))
        match = self._match(root, tokens)
        covered = self._covering(match)
        if match.length == len(tokens) and covered is not None:  # exactly this state, or one that can be cropped
            self._touch(match.node.path())
            return
        new = array(TOKEN_TYPE, tokens[match.length :])
        path = match.node.path()
        self._touch(path)
        needed = _nbytes_to_add(state, new)
        if not self._make_room(needed, path):
            self.counters.refused += 1
            return
        snapshot = state.grown(0)  # the copy may fail, for lack of memory
        self._roots[key] = root  # it may have been removed with its last state
        parent = self._split(match)
        node = self._add(parent, new, state, len(tokens)) if new else parent
        node.snapshot = snapshot
        self.nbytes += node.snapshot_nbytes
        self.counters.inserted += 1
        self._drop_redundant(node)
        self._touch(node.path())

    def clear(self) -> None:
        """Remove all states; the counters stay."""
        self._roots.clear()
        self._by_use.clear()
        self.nbytes = 0

    def _serving(self, tokens: Sequence[int], key: Hashable) -> tuple[_Match, DecoderState] | None:
        """The longest prefix of the tokens for which there is a state, and the snapshot from which it is made."""
        root = self._roots.get(key)
        if root is None:
            return None
        match = self._match(root, tokens)
        if match.length and (snapshot := self._covering(match)) is not None:
            return match, snapshot
        node: _Node | None = match.node if match.length == match.node.end else match.node.parent
        while node is not None and node.snapshot is None:
            node = node.parent
        return None if node is None or node.snapshot is None else (_Match(node, node.end), node.snapshot)

    @staticmethod
    def _match(root: _Node, tokens: Sequence[int]) -> _Match:
        """The longest prefix of the tokens that is in the tree of a root."""
        text, node, start = array(TOKEN_TYPE, tokens), root, 0
        while start < len(text) and (child := node.children.get(text[start])) is not None:
            ahead = text[start : start + len(child.edge)]
            if ahead != child.edge:
                pairs = zip(ahead, child.edge, strict=False)
                same = next((index for index, (a, b) in enumerate(pairs) if a != b), len(ahead))
                return _Match(child, start + same)
            node, start = child, child.end
        return _Match(node, start)

    @staticmethod
    def _covering(match: _Match) -> DecoderState | None:
        """The snapshot at the end of a match, or a later one that can be cropped to it."""
        node = match.node
        while node.snapshot is None and node.children:
            node = next(iter(node.children.values()))
        snapshot = node.snapshot
        exact = node.end == match.length
        return snapshot if snapshot is not None and (exact or snapshot.can_crop(match.length)) else None

    def _touch(self, path: Sequence[_Node]) -> None:
        """Note the use of the nodes of a path; the last one counts as used last."""
        for node in path:
            self._by_use[node] = None
            self._by_use.move_to_end(node)

    def _split(self, match: _Match) -> _Node:
        """The node that ends where a match ends; a node whose edge goes on is divided there."""
        node, parent = match.node, match.node.parent
        if match.length == node.end or parent is None:
            return node
        cut = match.length - parent.end
        before, after = (
            [{name: tensor[part].clone() for name, tensor in fields.items()} for fields in node.places]
            for part in (slice(None, cut), slice(cut, None))
        )
        head = _Node(node.edge[:cut], match.length, parent, before, children={node.edge[cut]: node})
        node.edge, node.places, node.parent = node.edge[cut:], after, head
        parent.children[head.edge[0]] = head
        self._by_use[head] = None
        return head

    def _add(self, parent: _Node, edge: "array[int]", state: DecoderState, end: int) -> _Node:
        """A new node with the places of `edge`, the last tokens that the state has read."""
        places = [
            {name: tensor[parent.end : end].clone() for name, tensor in _token_first(sublayer).items()}
            for sublayer in state.sublayers
        ]
        node = _Node(edge, end, parent, places)
        parent.children[edge[0]] = node
        self.nbytes += node.edge_nbytes
        return node

    def _drop_redundant(self, node: _Node) -> None:
        """Remove the snapshots before a new one that it makes unnecessary, because it can be cropped to them."""
        assert node.snapshot is not None
        for earlier in node.path()[:-1]:
            if earlier.snapshot is not None and node.snapshot.can_crop(earlier.end):
                self.nbytes -= earlier.snapshot_nbytes
                earlier.snapshot = None

    def _make_room(self, needed: int, path: Sequence[_Node]) -> bool:
        """Drop the least recently used states until `needed` bytes fit; False if they cannot. A path's nodes stay."""
        kept = set(path)
        if needed + sum(node.edge_nbytes for node in path) > self.max_bytes:
            return False
        while self.nbytes + needed > self.max_bytes:
            leaf_or_snapshot = (n for n in self._by_use if n.snapshot_nbytes or not (n.children or n in kept))
            node = next(leaf_or_snapshot)
            snapshot, node.snapshot = node.snapshot, None
            self.nbytes -= 0 if snapshot is None else snapshot.nbytes
            self.counters.dropped += 1
            if node not in kept and not node.children:
                self._shorten(node, snapshot, kept)
        return True

    def _shorten(self, leaf: _Node, snapshot: DecoderState | None, kept: set[_Node]) -> None:
        """Remove a leaf, and its parents for which that leaves nothing to serve.

        Its parent inherits its snapshot if that can be cropped and nothing else serves the parent.
        """
        parent = leaf.parent
        assert parent is not None
        alone = parent.parent is not None and parent.snapshot is None and len(parent.children) == 1
        if alone and snapshot is not None and snapshot.can_crop(parent.end):
            snapshot.crop(parent.end)
            parent.snapshot = snapshot
            self.nbytes += snapshot.nbytes
        node = leaf
        while node.parent is not None and node.snapshot is None and not node.children and node not in kept:
            parent = node.parent
            del parent.children[node.edge[0]], self._by_use[node]
            self.nbytes -= node.edge_nbytes
            node = parent
        self._roots = {key: root for key, root in self._roots.items() if root.children}


class StoredStream:
    """Looks up the prompt of one stream of an engine in a store, and adds the states of the stream to it.

    A state that can be cropped is added when the prompt has been read and when the stream ends. Any other state is
    added at every multiple of `snapshot_tokens`, before the last token of the prompt (so that reading the same prompt
    again takes one token), and at the end.
    """

    def __init__(self, store: PrefixStore, key: Hashable, tokens: list[int], croppable: bool) -> None:
        """tokens: all of the stream; the engine appends to them. croppable: whether its states can be cropped."""
        self.store, self.key, self.tokens, self.croppable = store, key, tokens, croppable
        self.prompt_tokens = len(tokens)

    def find(self, capacity: int) -> tuple[DecoderState, int] | None:
        """A state of the beginning of the prompt, without its last token, and the number of tokens that it has read."""
        return self.store.find(self.tokens[: self.prompt_tokens - 1], self.key, capacity)

    def tokens_to_border(self, position: int) -> int:
        """How many tokens of the prompt can be read until the next snapshot, at least 1."""
        rest = self.prompt_tokens - position
        if self.croppable or rest <= 1:
            return max(rest, 1)
        return min(rest - 1, self.store.snapshot_tokens - position % self.store.snapshot_tokens)

    def is_due(self, position: int, ended: bool) -> bool:
        """True if the state behind so many tokens is to be stored: it is at a border, or the stream has ended."""
        regular = position % self.store.snapshot_tokens == 0 or position == self.prompt_tokens - 1
        return ended or (position == self.prompt_tokens if self.croppable else regular)

    def save(self, state: DecoderState, row: int) -> None:
        """Store the state of the stream, a row of a batch."""
        alone = state if len(state.positions) == 1 else state.select(torch.tensor([row]))
        self.store.insert(self.tokens[: state.positions[row]], alone, self.key)


def prefix_key(
    decoder: Decoder,
    state: DecoderState,
    first_chunk: Sequence[int],
    memory: Memory | None = None,
    prefixes: Counts | None = None,
) -> Hashable:
    """Everything but the tokens that a state depends on, for `PrefixStore`: the model, the policies, and the context.

    state: any state of the stream, of which only the cache policies count. first_chunk: the tokens that the stream
    reads at once at its beginning. A layer that calibrates on them gives another state for each, so that they are part
    of the key (`Traits.calibrates`), as are those of a prefix, which see one another. memory, prefixes: of the first
    chunk (`PrefillContext`).
    """
    policies = tuple(layer.cache_policy for layer in state.layers)
    chunk = tuple(first_chunk[: prefixes[0]] if prefixes else ())
    for mixer in decoder.mixers:
        if mixer.traits.calibrates:
            first = tuple(first_chunk[: mixer.traits.calibrated_after])
            chunk = max(chunk, first, key=len)
    read = None
    if memory is not None:
        parts = [x for x in (memory.hidden_BSE, memory.real_BS) if x is not None]
        read = digest(b"".join(x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() for x in parts))
    return weakref.ref(decoder), policies, chunk, read, prefixes


def _nbytes_to_add(state: DecoderState, edge: "array[int]") -> int:
    """Bytes that a node takes for these tokens, the last ones that the state has read, with its snapshot."""
    tokens = sum(of.held_nbytes(len(edge)) for of in state.sublayers)
    return tokens + edge.itemsize * len(edge)


def _token_first(state: State) -> dict[str, Tensor]:
    """Views of the fields with one place per token, with the tokens as the first dimension."""
    tensors = state.tensors()
    return {name: tensors[name].movedim(dim, 0) for name, dim in state.room.items() if name in tensors}


@torch.inference_mode(False)  # so that the caller may advance the state anywhere
@torch.no_grad()
def _assembled(path: Sequence[_Node], snapshot: DecoderState, length: int, capacity: int) -> DecoderState:
    """The state at `length` tokens from the places of a path, and a snapshot at its end or one that crops to it."""
    state, start = snapshot.grown(capacity), 0
    for node in path:
        end = min(node.end, length)
        for sublayer, stored in zip(state.sublayers, node.places, strict=True):
            places = _token_first(sublayer)
            for name, tensor in stored.items():
                places[name][start:end] = tensor[: end - start]
        start = node.end
    if state.position > length:
        state.crop(length)
    return state
