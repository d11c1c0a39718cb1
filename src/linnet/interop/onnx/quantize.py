"""Graphs with 8-bit or 4-bit weights: the products of all linear maps, including the head, and the embedding lookup.

onnxruntime's `MatMulNBits` stores blocks of 32 or 128 numbers with a scale each, symmetric; activations are rounded to
8 bits too (accuracy level 4). The matrix of a tied head and the table of the embedding are the same bytes.

Legend: `V` vocabulary, `D` width of the token vectors, `K` inputs and `N` outputs of a product.
"""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from linnet.core.checksum import digest
from linnet.interop.onnx.fusion import DOMAIN, drop_unread
from linnet.layers.contract import sublayers_of
from linnet.model.decoder import Decoder

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

BITS = {"int8": 8, "int4": 4}
BLOCK, WIDE_BLOCK = 32, 128
"""Numbers that share a scale. With 8 bits, wide blocks lose no more and are a quarter faster (`block_of`)."""
ACCURACY_LEVEL = 4

PRODUCT, LOOK_UP = "MatMulNBits", "GatherBlockQuantized"
TABLE = "decoder.embedding.tokens.weight"
"""Name of the embedding's matrix in a graph."""


def quantized(graph: "ModelProto", precision: str, decoder: Decoder) -> "ModelProto":
    """Return the graph with its weights as `int8` or `int4`; unchanged for `float32`."""
    if precision == "float32":
        return graph
    from onnx import numpy_helper
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    logging.getLogger("onnxruntime.quantization.matmul_nbits_quantizer").setLevel(logging.ERROR)
    block = block_of(decoder, precision)
    config = DefaultWeightOnlyQuantConfig(block, is_symmetric=True, accuracy_level=ACCURACY_LEVEL, bits=BITS[precision])
    _transpose_weights(graph.graph)
    # Weights are recognized by their content, because the exporter renames the matrices that it transposes.
    constants = (tensor for tensor in graph.graph.initializer if len(tensor.dims) == 2)
    known = {tensor.name: digest(numpy_helper.to_array(tensor).tobytes()) for tensor in constants}
    weights = {digest(weight.detach().T.contiguous().numpy().tobytes()) for weight in _matrices(decoder)}
    products = (node for node in graph.graph.node if node.op_type == "MatMul")
    excluded = [node.name for node in products if known.get(node.input[1]) not in weights]
    quantizer = MatMulNBitsQuantizer(graph, nodes_to_exclude=excluded, algo_config=config)
    quantizer.process()
    small: ModelProto = quantizer.model.model
    _quantize_look_up(small.graph, config)
    drop_unread(small.graph)
    return small


def block_of(decoder: Decoder, precision: str) -> int:
    """Return the block size: wide for 8 bits, unless a matrix is too narrow and would have to be padded much."""
    wide = precision == "int8" and min(weight.shape[1] for weight in _matrices(decoder)) >= WIDE_BLOCK
    return WIDE_BLOCK if wide else BLOCK


def _matrices(decoder: Decoder) -> list[Tensor]:
    """Return the weights of linear maps, without parts that skip quantization, and the embedding's table."""
    parts = [part for sublayer in sublayers_of(decoder) for part in sublayer.skip_quantization()]
    skipped = {id(module) for part in parts for module in part.modules()}
    weights = []
    for module in decoder.modules():
        if (isinstance(module, nn.Linear) and id(module) not in skipped) or module is decoder.embedding.tokens:
            assert isinstance(module.weight, Tensor)
            weights.append(module.weight)
    return weights


def _transpose_weights(graph: "GraphProto") -> None:
    """Replace weights that the graph transposes by transposed constants: `[N, K]` to `[K, N]`."""
    from onnx import helper, numpy_helper

    weights = {tensor.name: tensor for tensor in graph.initializer}
    known = set(weights)
    sources = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Transpose" and node.input[0] in weights and len(weights[node.input[0]].dims) == 2
    }
    for node in graph.node:
        transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        if node.op_type == "Gemm" and transposed and node.input[1] in weights:
            sources[node.input[1]] = node.input[1]
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in sources:
            nodes.append(node)
            continue
        source = sources[node.input[1]]
        name = f"{source}.transposed"
        if name not in known:
            known.add(name)
            matrix = np.ascontiguousarray(numpy_helper.to_array(weights[source]).T)
            graph.initializer.append(numpy_helper.from_array(matrix, name))
        bias = list(node.input[2:3])
        out = f"{node.output[0]}.product" if bias else node.output[0]
        nodes.append(helper.make_node("MatMul", [node.input[0], name], [out], name=node.name))
        if bias:
            nodes.append(helper.make_node("Add", [out, bias[0]], [node.output[0]], name=f"{node.name}.bias"))
    del graph.node[:]
    graph.node.extend(nodes)


def _quantize_look_up(graph: "GraphProto", config: Any) -> None:
    """Make the embedding lookup read quantized rows, laid out like a product: `[V, D]` has a row for each output."""
    from onnx import helper, numpy_helper
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantizer

    nodes = [node for node in graph.node if node.op_type == "Gather" and node.input[0] == TABLE]
    (table,) = [tensor for tensor in graph.initializer if tensor.name == TABLE]
    table_VD = numpy_helper.to_array(table)
    packed, scales, _ = DefaultWeightOnlyQuantizer(config).qbits_block_quant(np.ascontiguousarray(table_VD.T))
    columns = -(-table_VD.shape[1] * config.bits // 8)
    data = packed.reshape(len(table_VD), -1)[:, :columns]
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(data), f"{TABLE}.rows"))
    graph.initializer.append(numpy_helper.from_array(scales.reshape(len(table_VD), -1), f"{TABLE}.scales"))
    for node in nodes:
        look_up = helper.make_node(
            LOOK_UP,
            [f"{TABLE}.rows", node.input[1], f"{TABLE}.scales"],
            list(node.output),
            name=node.name,
            domain=DOMAIN,
            gather_axis=0,
            quantize_axis=1,
            block_size=config.block_size,
            bits=config.bits,
        )
        node.CopyFrom(look_up)
