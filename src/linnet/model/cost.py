"""What a model costs, from its description alone; equal to the built model, exactly."""

from dataclasses import dataclass

from linnet.model.spec import BlockSpec, ModelSpec
from linnet.nn.cost import Cost, linear_cost


@dataclass(frozen=True)
class ModelCost:
    """The cost of a model's parts; `head` is the norm and matrix behind the last layer (tied: `embedding`'s)."""

    embedding: Cost
    blocks: Cost
    head: Cost

    @property
    def parameters(self) -> int:
        """All parameters, shared ones once."""
        return self.embedding.parameters + self.blocks.parameters + self.head.parameters

    def flops_per_token(self, tokens: int, with_head: bool) -> float:
        """Forward FLOPs per token of one sequence of `tokens` tokens."""
        flops = self.blocks.flops(tokens) + (self.head.flops(tokens) if with_head else 0)
        return flops / tokens

    def state_bytes(self, tokens: int, element_bytes: int = 4) -> int:
        """Bytes of decode state of one stream with room for `tokens` tokens."""
        return self.blocks.state_bytes(tokens, element_bytes)


def model_cost(spec: ModelSpec) -> ModelCost:
    """Add up the parts."""
    blocks, width = Cost(), spec.d_model
    for block in spec.blocks:
        blocks += _block_cost(block, width, spec)
        width = block.width or spec.d_model
    if width != spec.d_model:
        blocks += linear_cost(width, spec.d_model, bias=False)
    return ModelCost(_embedding_cost(spec), blocks, _head_cost(spec))


def _block_cost(block: BlockSpec, width_before: int, spec: ModelSpec) -> Cost:
    width = block.width or spec.d_model
    layer = block.mixer.cost(width, spec.context_length) + block.norm.cost(width)
    if block.feed_forward is not None:
        layer += block.feed_forward.cost(width) + block.norm.cost(width)
    project = linear_cost(width_before, width, bias=False) if width != width_before else Cost()
    return project + layer.repeated(block.repeat, shared=block.share_weights)


def _embedding_cost(spec: ModelSpec) -> Cost:
    learned = spec.embedding.positions == "learned"
    rows = spec.vocab_size + (spec.context_length if learned else 0)
    norm = spec.embedding.norm.cost(spec.d_model) if spec.embedding.norm else Cost()
    return Cost(parameters=rows * spec.d_model) + norm


def _head_cost(spec: ModelSpec) -> Cost:
    norm = spec.head.norm.cost(spec.d_model) if spec.head.norm else Cost()
    matrix = linear_cost(spec.d_model, spec.vocab_size, spec.head.bias)
    if spec.head.tied:
        matrix = Cost(flops_per_token=matrix.flops_per_token)
    return norm + matrix
