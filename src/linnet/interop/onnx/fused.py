"""The graph for one token with onnxruntime's own operators in the place of what the exporter writes."""

from typing import TYPE_CHECKING

from linnet.interop.onnx.edges import DOMAIN
from linnet.interop.onnx.fused_attention import fuse_attention
from linnet.interop.onnx.fused_norms import fuse_residual_norms

if TYPE_CHECKING:
    from onnx import ModelProto


def fuse_step(model: "ModelProto") -> None:
    """Attention with its rotary positions, and residual sums with the norms behind them, in place."""
    from onnx import helper

    found = fuse_attention(model.graph) + fuse_residual_norms(model.graph)
    if found and all(known.domain != DOMAIN for known in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
