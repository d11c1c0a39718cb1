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
OF_PASS = {"BW": _delta.WRITES, "BK": 64, "BV": _delta.MOST_VALUES}
OF_CHUNKS = {"BC": 64, "BW": _delta.WIDTH}


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
        build(_decay._gradients_of_rates, capability, OF_TED | near, types, **_decay.FOR_RATES)
    build(_decay._run_on, capability, OF_TED | {"BACKWARDS": True, "BLOCK": _decay.NUMBERS}, {"K": "i32"})
    for kernel in (_delta._onwards, _delta._back):
        build(kernel, capability, OF_RULE | OF_PASS, {"H": "i32"}, **_delta.FOR_PASS)
    for kernel in (_delta._chunk, _delta._chunk_gradients):
        build(kernel, capability, OF_RULE | OF_CHUNKS, {"H": "i32"}, **_delta.FOR_CHUNKS)


if __name__ == "__main__":
    main(int(sys.argv[1]))
