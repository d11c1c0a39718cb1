"""Packages of compiled decoding steps in the user's cache: which one serves a decoder, and the process that builds it.

A package has the captured step of a model description, of one stream or of several, of any length. Its weights are
inputs, so that it serves all models of the description. (As constants of the package, small ones would become numbers
in the code.) For processors it is a library that AOTInductor makes; for GPUs, where a recorded graph starts the
kernels, a file that says where Inductor's kernels are. `python -m linnet.inference.step_packages PACKAGE` compiles
one, from a request on the standard input.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing

import linnet
from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.atomic import atomic_path, file_lock, lock_holder
from linnet.core.errors import note
from linnet.core.files import cache_folder, write_text
from linnet.core.system import available_bytes
from linnet.inference.captured_step import export_step, reserve
from linnet.inference.fusions import use_sums_for_one_row
from linnet.inference.step_values import divided_step, flat_module
from linnet.inference.weights import conversion_of, convert_weights
from linnet.layers.registry import CACHE_POLICIES
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState
from linnet.ops.native import library
from linnet.ops.native.build import check_owner, find_compiler, processor_features

ROOM, EXAMPLE_TOKENS, EXAMPLE_INPUT = 67, 2, 23
"""Room of the traced states, tokens of their prompts and of an encoder's input: sizes unlike others of a model."""

EXAMPLE_ROWS = 3
"""Rows of a traced state of several streams."""

FUSED_ROOM, FUSED_ROWS = 1021, 29
"""The same for a GPU, whose kernels are fitted to the sizes of the example."""

RESERVED_TOKENS = 32
"""Steps between two looks at states whose number of tokens is not fixed (`State.reserve`)."""

RETRY_AFTER_S = 24 * 3600.0
"""Age of a recorded failure after which a build is tried again: a full disk passes."""

PDL_CAPABILITY = 9
"""Compute capability from which on a kernel may start while the one before it ends."""

BUILD_MEMORY = 4
"""Times the bytes of the weights: memory that a build may need."""


@dataclass
class Builds:
    """Compiled and recorded steps in this process.

    enabled: whether they are used, compiled in the background, and recorded (`inference.cuda_graphs`). processes: the
    builds of this process, by package.
    """

    enabled: bool = True
    processes: dict[Path, "subprocess.Popen[bytes]"] = field(default_factory=dict)


BUILDS = Builds()


@contextmanager
def ordinary_steps() -> Iterator[None]:
    """Use, compile and record no steps within the block, whose times do not depend on what caches hold."""
    before, BUILDS.enabled = BUILDS.enabled, False
    try:
        yield
    finally:
        BUILDS.enabled = before


def package_of(decoder: Decoder, state: DecoderState, fused: bool = False) -> tuple[dict[str, Any], Path]:
    """The request that describes a decoder's step, and the package in the cache that it leads to.

    One package serves one stream, and another any number of several. Its name has a hash of everything that the code
    depends on: the description, the precision, the cache policies, the number of threads, linnet's sources, PyTorch,
    the compiler and the processor, or the GPU. fused: kernels for a recorded graph (`fused_step`).
    """
    description = decoder.spec.model_dump(mode="json")
    description["name"] = ""
    request = {
        "description": description,
        "weights": conversion_of(decoder),
        "threads": 1 if fused else torch.get_num_threads(),
        "rows": 1 if len(state.positions) == 1 else FUSED_ROWS if fused else EXAMPLE_ROWS,
        "cache_policies": [part.cache_policy.to_dict() for part in state.layers],
        "fused_on": str(decoder.device) if fused else None,
    }
    has_library = library(decoder.device) is not None
    versions = [_sources_hash(), torch.__version__, str(find_compiler()), has_library, *processor_features()]
    if decoder.device.type == "cuda":
        versions += [torch.cuda.get_device_name(decoder.device), torch.version.cuda, find_version("triton")]
    digest = hashlib.sha256(json.dumps([request, versions], sort_keys=True).encode()).hexdigest()[:16]
    return request, cache_folder() / "steps" / f"{digest}.{'kernels.json' if fused else 'pt2'}"


@cache
def _sources_hash() -> str:
    """A hash of the files that a pass of a decoder may run."""
    digest, root = hashlib.sha256(), Path(linnet.__file__).parent
    for folder in ("inference", "layers", "model", "nn", "ops"):
        for file in sorted((root / folder).rglob("*.*")):
            if file.suffix in (".py", ".cpp", ".hpp"):
                digest.update(file.read_bytes())
    return digest.hexdigest()


def weight_values(package: Path) -> Path:
    """The package that computes values from weights alone (`step_values`), where the step of a package needs some."""
    return package.with_suffix(".weights.pt2")


def _constants(package: Path) -> Path:
    """The file of the constants that tracing made beside parameters and buffers."""
    return package.with_suffix(".safetensors")


def find_version(distribution: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def kernels_folder(package: Path) -> Path:
    """The folder of Inductor's kernels for a GPU, one of `step` and one of `values`."""
    return package.with_suffix("")


def start_build(request: dict[str, Any], package: Path, nbytes: int = 0) -> bool:
    """Start the process that compiles a package unless one runs; False, after a note, if it cannot be compiled.

    A build that failed within a day is not repeated; the reason is in a file beside the package, with the suffix
    `.failed`. nbytes: of the weights in float32, of which a build makes copies.
    """
    failure = package.with_suffix(".failed")
    if failure.is_file() and time.time() - failure.stat().st_mtime < RETRY_AFTER_S:
        reason = next(iter(failure.read_text(errors="replace").splitlines()), "no reason")
        note(f"the decoding step could not be compiled: {reason} ({failure})")
        return False
    own = BUILDS.processes.get(package)
    if own is not None and own.poll() is not None:
        note(f"the decoding step could not be compiled: see {package.with_suffix('.log')}")
        return False
    if own is not None or lock_holder(package.with_suffix(".lock")) is not None:
        return True
    compiler = find_compiler()
    if compiler is None or available_bytes(torch.device("cpu")) < BUILD_MEMORY * nbytes:
        return False
    package.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with package.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(
            # -P: no module is imported from the folder that the user happens to be in.
            [sys.executable, "-P", "-m", "linnet.inference.step_packages", str(package)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "CXX": compiler},
            start_new_session=True,  # it goes on when this process ends: the next one needs the package
        )
    BUILDS.processes[package] = process
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(request).encode())
    note("compiling this model's decoding step in the background, once; tokens will be faster after a minute or so")
    return True


def build(request: dict[str, Any], package: Path) -> None:
    """Compile a package; weights and the state are of the described shapes, their values have no influence."""
    torch.set_num_threads(request["threads"])
    decoder = Decoder(ModelSpec.parse(request["description"], "description")).eval().requires_grad_(False)
    precision = request["weights"]["precision"]
    if "group" in request["weights"]:
        convert_weights(decoder, precision, request["weights"]["group"])
    decoder = decoder.to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
    if request["fused_on"] is not None:
        build_fused(decoder.to(request["fused_on"]), request, package)
        return
    program, shapes = export_step(decoder, example_state(decoder, request["rows"], request["cache_policies"]))
    step, values = divided_step(program, shapes)
    made = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / package.name
    options: dict[str, Any] = {"aot_inductor.package_constants_in_so": False, "aot_inductor.enable_line_tables": False}
    if library(decoder.device) is not None:
        from linnet.ops.native.custom_ops import C_DECLARATIONS

        options["aot_inductor.custom_ops_to_c_shims"] = C_DECLARATIONS
        options["cpp.vec_isa_ok"] = True  # the compiler knows this processor: it has compiled the library for it
    if values is not None:
        _compile(values, made, weight_values(package), options)
    _compile(step, made, package, options)


def _compile(program: "torch.export.ExportedProgram", made: Path, package: Path, options: dict[str, Any]) -> None:
    """Compile a program to a package; made: where the compiler puts it."""
    torch._inductor.aoti_compile_and_package(program, package_path=str(made), inductor_configs=dict(options))
    constants = program.state_dict | program.constants
    # The compiler may number the tensors that the trace has lifted from the code.
    constants |= {f"_tensor_constant{index}": tensor for index, tensor in enumerate(program.constants.values())}
    write_tensors(_constants(package), {name: constants[name] for name in _loaded(made).get_constant_fqns()})
    with atomic_path(package) as path:
        shutil.copyfile(made, path)


def build_fused(decoder: Decoder, request: dict[str, Any], package: Path) -> None:
    """Let Inductor make kernels for a GPU, fitted to the sizes of the example, and try whether they can be loaded."""
    state = example_state(decoder, request["rows"], request["cache_policies"], FUSED_ROOM)
    program, shapes = export_step(decoder, state, native=False)
    use_sums_for_one_row(program)
    step, values = divided_step(program, shapes)
    (*inputs, states, weights), made = step.example_inputs[0][:4], []
    if values is not None:
        _save_kernels(values, kernels_folder(package) / "values", decoder.device)
        made = first_run(kernels_folder(package) / "values", weights)[1]
    _save_kernels(step, kernels_folder(package) / "step", decoder.device)
    first_run(kernels_folder(package) / "step", [*inputs, *states, *weights, *made])
    write_text(package, json.dumps({"values": values is not None}))


def _save_kernels(program: "torch.export.ExportedProgram", folder: Path, device: torch.device) -> None:
    """Compile a program, and save what Inductor makes of it."""
    module = flat_module(program)
    inputs = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    with tracing(TracingContext(inputs[0].fake_mode)):  # with the free sizes that the program has
        artifact = torch._inductor.standalone_compile(
            module,
            inputs,
            dynamic_shapes="from_tracing_context",
            options={"config_patches": inductor_options(device)},
        )
    artifact.save(path=str(folder), format="unpacked")


def inductor_options(device: torch.device) -> dict[str, Any]:
    """Kernels are tuned; on GPUs that can, one starts while the one before it ends (programmatic dependent launch)."""
    from torch._inductor import config

    options: dict[str, Any] = {"coordinate_descent_tuning": True}
    has_pdl = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= PDL_CAPABILITY
    if has_pdl and hasattr(config.triton, "enable_pdl"):
        options["triton.enable_pdl"] = True
    return options


def open_kernels(folder: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """The function whose kernels are in a folder, from its inputs to its outputs."""
    from torch._inductor.standalone_compile import CompiledArtifact

    check_owner(folder)
    with inductor_cache(folder):
        artifact = CompiledArtifact.load(path=str(folder), format="unpacked")
    return lambda inputs: list(artifact(*inputs))


def first_run(folder: Path, inputs: list[Tensor]) -> tuple[Callable[[list[Tensor]], list[Tensor]], list[Tensor]]:
    """Open the function whose kernels are in a folder and run it, which loads them; returns it and its outputs."""
    run = open_kernels(folder)
    with inductor_cache(folder):
        return run, run(inputs)


@contextmanager
def inductor_cache(folder: Path) -> Iterator[None]:
    """Within the block, where kernels are loaded and run for the first time, Inductor and Triton keep theirs there.

    It sets variables of the process, so one thread at a time may be in it (`fused_step.LOADING`).
    """
    from torch._inductor.runtime.cache_dir_utils import temporary_cache_dir

    before = os.environ.get("TRITON_CACHE_DIR")
    try:
        with temporary_cache_dir(str(folder)):
            yield
    finally:
        if before is None:  # Inductor sets it when it loads kernels
            os.environ.pop("TRITON_CACHE_DIR", None)


def example_state(decoder: Decoder, rows: int, policies: Sequence[Mapping[str, Any]], room: int = ROOM) -> DecoderState:
    """A state to be traced, of streams that have begun."""
    parsed = [CACHE_POLICIES[fields.pop("kind")](**fields) for fields in map(dict, policies)]
    state = decoder.initial_state(rows, room, parsed)
    prompts, inputs = (
        torch.ones(rows, tokens, dtype=torch.int64, device=decoder.device) for tokens in (EXAMPLE_TOKENS, EXAMPLE_INPUT)
    )
    memory = None if decoder.encoder is None else decoder.encode(inputs)
    decoder.hidden(prompts, state, memory=memory)
    reserve(state, RESERVED_TOKENS)
    return state


def opened(package: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """The function of a package, from its inputs to its outputs."""
    check_owner(package)
    loaded, constants = _loaded(package), read_tensors(_constants(package))
    loaded.load_constants(constants, False, True, True)

    def run(inputs: list[Tensor]) -> list[Tensor]:
        assert constants is not None  # the package refers to them
        outputs: list[Tensor] = loaded.run(inputs)
        return outputs

    return run


def _loaded(package: Path) -> Any:
    """A package's code. `torch._inductor.aoti_load_package` does the same, but first imports the compiler."""
    if library(torch.device("cpu")) is not None:
        from linnet.ops.native.custom_ops import link

        link()  # the code calls native custom ops
    return torch._C._aoti.AOTIModelPackageLoader(str(package), "model", False, 1, -1)


def record_failure(package: Path, reason: str) -> None:
    """Write why a package cannot be used into a file beside it; no build is tried for a day."""
    write_text(package.with_suffix(".failed"), f"{reason}\n")


def main() -> None:
    """Compile the package that the command line names; the request is read from the standard input."""
    package, request = Path(sys.argv[1]), json.load(sys.stdin)
    os.nice(10)
    with file_lock(package.with_suffix(".lock"), "another process ({}) compiles it"), torch.no_grad():
        if package.is_file():
            return
        try:
            with tempfile.TemporaryDirectory(prefix="linnet-") as folder:  # of all that the compiler writes
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
                build(request, package)
        except Exception as error:  # the exporter and the compiler raise many kinds
            record_failure(package, f"{type(error).__name__}: {error}")
            raise


if __name__ == "__main__":
    main()
