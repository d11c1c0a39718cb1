"""Options of `linnet generate` about what the layers of a model keep; the layers themselves bring some of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from linnet.cli.options import option
from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.inference.language_model import LanguageModel
    from linnet.model.decoder import Decoder


DefaultCachePolicy = Annotated[
    str | None,
    option(
        "POLICY",
        "What the layers keep of a text; linnet generate MODEL --help lists the policies of a model. Default: full.",
    ),
]
"""The policy of every stream of a command, where no model is named before its options."""


@dataclass(frozen=True)
class StateOptions:
    """What is kept of the text, and the stream that is saved or continued."""

    calibration: Annotated[str | None, option("FILE|identity|random", "", hidden=True)] = None
    kv_cache: Annotated[
        bool,
        typer.Option("--kv-cache/--no-kv-cache", help="Keep a cache of the text, or read all of it for each token."),
    ] = True
    cache_policy: Annotated[str | None, option("POLICY", "", hidden=True)] = None
    show_context: Annotated[bool, typer.Option("--show-context", hidden=True)] = False
    save_state: Annotated[Path | None, option("FILE", "Save the stream here, to continue it later.")] = None
    load_state: Annotated[
        Path | None,
        option("FILE", "Continue a stream of --save-state, followed by --prompt; its random numbers continue too."),
    ] = None

    @property
    def policy(self) -> str:
        """The cache policy that was typed, else the full cache."""
        from linnet.layers.cache_policy import FULL

        return self.cache_policy or FULL.label

    @property
    def of_one_text(self) -> dict[str, bool]:
        """Whether each option that goes with a single text is typed, by name."""
        return {
            "--show-context": self.show_context,
            "--save-state": self.save_state is not None,
            "--load-state": self.load_state is not None,
            "--no-kv-cache": not self.kv_cache,
        }

    def check(self, has_input: bool) -> None:
        """Raise `UserError` if a stream cannot be shown, saved or continued as it is asked to be."""
        if self.show_context and not self.kv_cache:
            raise UserError("--no-kv-cache: nothing is kept of the text; expected no --show-context")
        if self.load_state is not None and has_input:
            problem = f"--load-state {self.load_state} has the input that it began with; leave it out"
            raise UserError(f"--input: {problem}")
        for name, path in (("--save-state", self.save_state), ("--load-state", self.load_state)):
            if path is not None and not self.kv_cache:
                raise UserError(f"{name} {path}: a stream is its KV-cache; leave out --no-kv-cache")
        if self.load_state is not None and self.cache_policy is not None:
            problem = f"--load-state {self.load_state} has the policy that it began with; leave it out"
            raise UserError(f"--cache-policy {self.cache_policy}: {problem}")

    def check_layers(self, model: "LanguageModel") -> None:
        """Raise `UserError` for an option that no layer of the model has."""
        from linnet.layers.cache_policy import FULL

        typed = {
            "--calibration": self.calibration is not None,
            "--cache-policy": self.policy != FULL.label,
            "--show-context": self.show_context,
        }
        options = layer_options(model.decoder)
        for name, is_typed in typed.items():
            if is_typed and name not in options:
                kinds = ", ".join(dict.fromkeys(model.spec.layer_kinds))
                problem = f"no layer of the model ({kinds}) has this option"
                raise UserError(f"{name}: {problem}; options of its layers: {', '.join(options) or 'none'}")


def layer_options(decoder: "Decoder") -> dict[str, str]:
    """Return the options that the layers of a model bring, with the help text of each.

    They follow from what the layers declare: calibration on a text, and cache policies beside the full cache.
    """
    from linnet.inference.cache_policy import chooses
    from linnet.layers.cache_policy import FullCache

    options: dict[str, str] = {}
    if any(block.mixer.calibration != "none" for block in decoder.spec.blocks):
        options["--calibration"] = (
            "Replace the model's own calibration, from a file or by name; a random one follows the seed. Without this "
            "option the layers calibrate on the whole prompt in one pass, unless the model has a stored calibration, "
            "and keep the result for the whole continuation."
        )
    declared = {policy for mixer in decoder.mixers for policy in mixer.cache_policies}
    policies = sorted(declared - {FullCache}, key=lambda policy: policy.name)
    if policies:
        meanings: list[str] = []
        for policy in policies:
            meaning, *_ = (policy.__doc__ or "").splitlines()
            meanings.append(f"{policy.name}{f' or {policy.example}' if policy.example else ''}: {meaning}")
        options["--cache-policy"] = (
            f"What the layers keep of the text. full: Keep every token. {' '.join(meanings)} Fields are written as "
            "NAME:FIELD=NUMBER,...; policies with slashes between them are one for each layer that has a choice."
        )
    if any(map(chooses, decoder.mixers)):
        options["--show-context"] = (
            "Show what each layer with a choice of policies holds: live on a terminal, and once more at the end."
        )
    return options


class GenerateCommand(TyperCommand):
    """The command; its help lists the options of a model's layers if the model is named."""

    usual: list[str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not set(args).isdisjoint(ctx.help_option_names):
            typed, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            model = typed.get("model") if typed.get("engine") != "onnx" else None
            self.epilog = "Layers may bring further options: linnet generate MODEL --help"
            if isinstance(model, str):
                self._show_layer_options(model)
        return super().parse_args(ctx, args)

    def _show_layer_options(self, model: str) -> None:
        from linnet.model.decoder import meta_decoder
        from linnet.model.folder import model_folder
        from linnet.model.spec import ModelSpec

        decoder = meta_decoder(ModelSpec.load(model_folder(model)))
        options = layer_options(decoder)
        for parameter in self.params:
            if isinstance(parameter, TyperOption) and parameter.opts[0] in options:
                parameter.hidden, parameter.help = False, options[parameter.opts[0]]
        self.usual = [*self.usual, *options]
        kinds = ", ".join(dict.fromkeys(decoder.spec.layer_kinds))
        # The backspace character keeps the line as it is: names of options are not broken.
        self.epilog = f"\b\nOptions of the layers of {model} ({kinds}): {', '.join(options) or 'none'}"
