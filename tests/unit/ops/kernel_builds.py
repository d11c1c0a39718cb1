"""Kernels compiled for a GPU that need not be here: `python kernel_builds.py 80`, by `test_kernels.py`."""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from linnet.ops.kernels import _decay, _delta

SHARED_KIB = {80: 163, 89: 99, 90: 227, 120: 99}
"""That a program may have, by capability (CUDA programming guide, technical specifications)."""
POINTERS = {"polynomials_ptr": "*fp64", "fixed_ptr": "*fp64", "scale": "fp32"}
OF_TED = {
    "H": 256,
    "R": 31,
    "CHUNK": 32,
    "BC": 32,
    "BR": 32,
    "BH": 64,
    "FAR": True,
    "SOURCES": True,
    "PRECISION": "tf32x3",
}
OF_RULE = {"W": 64, "C": 64, "K": 64, "V": 64, "G": 1, "R": 1, "PRECISION": "tf32x3"}
OF_PASS = {"BW": _delta.WRITES_PER_BLOCK, "BK": 64, "BV": _delta.MAX_VALUES}
OF_CHUNKS = {"BC": 64, "BW": _delta.CHANNELS_PER_BLOCK}


def build(kernel: Any, capability: int, constants: dict[str, Any], types: dict[str, str], **options: int) -> None:
    names = kernel.arg_names
    known = {name: value for name, value in constants.items() if name in names}
    types = {name: "*fp32" if name.endswith("_ptr") else "i32" for name in names} | POINTERS | types
    signature = {name: "constexpr" if name in known else types[name] for name in names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=known)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    print(kernel.__name__, built.metadata.shared, len(built.asm["cubin"]))
    assert built.metadata.shared <= SHARED_KIB[capability] * 1024, kernel.__name__


def main(capability: int) -> None:
    for narrow in ("*bf16", "*fp32"):
        near = {"NEAR": "tf32" if narrow == "*bf16" else "tf32x3"}
        types = dict.fromkeys(("x_ptr", "v_ptr", "g_ptr"), narrow)
        build(_decay._enter, capability, OF_TED | near, types)
        build(_decay._read, capability, OF_TED | near, types | {"out_ptr": narrow})
        build(_decay._gradients_of_v, capability, OF_TED | near, types | {"out_ptr": narrow})
        build(_decay._gradients_of_rates, capability, OF_TED | near, types, **_decay.RATE_OPTIONS)
    build(_decay._accumulate, capability, OF_TED | {"BACKWARDS": True, "BLOCK": _decay.SUMS_PER_PROGRAM}, {"K": "i32"})
    for kernel in (_delta._forward_pass, _delta._backward_pass):
        build(kernel, capability, OF_RULE | OF_PASS, {"H": "i32"}, **_delta.PASS_OPTIONS)
    for kernel in (_delta._chunk, _delta._chunk_gradients):
        build(kernel, capability, OF_RULE | OF_CHUNKS, {"H": "i32"}, **_delta.CHUNK_OPTIONS)


if __name__ == "__main__":
    main(int(sys.argv[1]))
