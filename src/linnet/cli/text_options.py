"""Options of texts that a model writes: how they begin and end, how tokens are chosen, what is reported."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from linnet.cli.options import option
from linnet.core.bounds import MAX_TEXTS
from linnet.core.errors import UserError
from linnet.core.files import read_whole, standard_input

if TYPE_CHECKING:
    from linnet.data.tools import Tools
    from linnet.inference.beams import EarlyStopping
    from linnet.inference.constrained import Constraint
    from linnet.inference.sampling import Sampling
    from linnet.inference.text_events import TextEvent, TokenChoice


StopTexts = Annotated[list[str] | None, option("TEXT", "Stop before this text, which is not printed (repeatable).")]
MaxTokens = Annotated[int, typer.Option(help="Stop after this many tokens if the text has not ended.")]
TextAsJson = Annotated[bool, typer.Option("--json", help="Print text and figures as JSON, all at the end.")]


@dataclass(frozen=True)
class PromptOptions:
    """What a text begins with, and when it ends."""

    prompt: Annotated[
        str,
        typer.Option(help="The text to continue; - reads it from the standard input, without one final newline."),
    ] = ""
    input_text: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="TEXT",
            help="For a model of pairs: the input that the text follows from; --prompt is then how the text begins.",
        ),
    ] = None
    parse_special: Annotated[
        bool,
        typer.Option("--parse-special", help="Names of control tokens, such as <|im_start|>, become these tokens."),
    ] = False
    max_tokens: MaxTokens = 200
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue after the end of a text with the next one.")
    ] = False

    def read(self) -> "PromptOptions":
        """The same with the text of the standard input in place of the prompt `-`."""
        if self.prompt != "-":
            return self
        try:
            text = read_whole(standard_input(), "--prompt -").decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"--prompt -: the standard input is not UTF-8 text (byte {error.start})") from None
        return replace(self, prompt=text.removesuffix("\n"))


@dataclass(frozen=True)
class SamplingOptions:
    """The choice of the next token; the fields are those of `inference.sampling.Sampling`, applied in its order."""

    temperature: Annotated[float, typer.Option(help="Divides the logits; 0 takes the likeliest token.")] = 0.8
    top_k: Annotated[int, typer.Option(help="Choose among the k likeliest tokens; 0 for all.")] = 0
    top_p: Annotated[
        float, typer.Option(help="Choose among the fewest tokens that together have this probability; 1 for all.")
    ] = 1.0
    min_p: Annotated[
        float, typer.Option(help="Choose among tokens with this share of the likeliest one's probability; 0 for all.")
    ] = 0.0
    typical_p: Annotated[
        float,
        typer.Option(help="Choose among tokens of typical information that together have this probability; 1 for all."),
    ] = 1.0
    repetition_penalty: Annotated[
        float, typer.Option(help="Divides positive logits of tokens in the prompt or the text; 1 has no effect.")
    ] = 1.0
    frequency_penalty: Annotated[
        float, typer.Option(help="Subtracted from a token's logit for each time that it was generated.")
    ] = 0.0
    presence_penalty: Annotated[
        float, typer.Option(help="Subtracted from the logit of each token that was generated before.")
    ] = 0.0
    logit_bias: Annotated[
        list[str] | None, option("TOKEN=BIAS", "Added to the logit of a token id, such as 13=-2.5 (repeatable).")
    ] = None
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text. Default: a random one.")] = None

    def sampling(self, draws_seed: bool = True) -> "Sampling":
        """Return the settings, with a random seed unless one was typed; `UserError` for an invalid value."""
        from linnet.inference.sampling import Sampling, fresh_seed

        biases: dict[int, float] = {}
        for typed in self.logit_bias or ():
            token, _, bias = typed.partition("=")
            try:
                biases[int(token)] = float(bias)
            except ValueError:
                accepted = "TOKEN=BIAS, a token id and a number"
                raise UserError(field="logit_bias", value=typed, accepted=accepted) from None
        seed = fresh_seed() if self.seed is None and draws_seed else self.seed
        return Sampling(**vars(self) | {"logit_bias": biases, "seed": seed})


@dataclass(frozen=True)
class ContinuationOptions:
    """Where a text stops, its constraint, and how many texts; log-probabilities are part of the JSON."""

    stop: StopTexts = None
    json_schema: Annotated[
        str | None,
        option(
            "FILE|TEXT", "The text is JSON of this schema: the file of this name, or without one the schema itself."
        ),
    ] = None
    regex: Annotated[str | None, option("EXPRESSION", "The whole text matches this regular expression.")] = None
    choice: Annotated[list[str] | None, option("TEXT", "The text is one of these (repeatable).")] = None
    grammar: Annotated[
        str | None,
        option(
            "FILE|TEXT",
            "The text follows these rules, in llguidance's form of Lark: the file of this name, or without one the "
            "rules themselves.",
        ),
    ] = None
    n: Annotated[
        int, typer.Option("--n", min=1, max=MAX_TEXTS, metavar="N", help="Texts, each with a seed one higher.")
    ] = 1
    best_of: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=MAX_TEXTS,
            metavar="N",
            help="The best of N texts, each with a seed one higher: by --reward, or else by its mean log-probability. "
            "--json: all, the best first.",
        ),
    ] = None
    reward: Annotated[str | None, option("MODEL", "Of --best-of: the reward model that chooses.")] = None
    logprobs: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="With --json: log-probabilities of the tokens, and of the N likeliest at each place.",
        ),
    ] = None

    draft: Annotated[
        str | None,
        option("FOLDER", "Guess tokens with this smaller model of the same tokenizer; the text stays the same."),
    ] = None
    prompt_lookup: Annotated[
        int,
        typer.Option(metavar="N", help="Guess up to N tokens at once from an earlier place of the text; 0 for none."),
    ] = 0
    beams: Annotated[
        int | None,
        typer.Option(
            metavar="K", help="The best text that a search with K beams finds; nothing is drawn. --json: all."
        ),
    ] = None
    length_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="POWER",
            help="Of --beams: a text's log-probability is divided by its length to this power (1 if not given); above "
            "0 favors long texts, below 0 short ones.",
        ),
    ] = None
    early_stopping: Annotated[
        Literal["true", "false", "never"] | None,
        typer.Option(
            help="Of --beams: stop with as many ended texts (true), when a better one is unlikely (false, if not "
            "given), or impossible (never)."
        ),
    ] = None

    def constraint(self) -> "Constraint | None":
        """The constraint of the text; `UserError` for two of them, and for a file that cannot be read."""
        from linnet.inference.constrained import constraint_of

        json_schema, grammar = self.json_schema, self.grammar
        if json_schema is not None:
            is_text = json_schema.strip() in ("true", "false") or "{" in json_schema
            json_schema = _file_or_text(json_schema, "--json-schema", is_text)
        if grammar is not None:
            grammar = _file_or_text(grammar, "--grammar", ":" in grammar)
        return constraint_of(json_schema, self.regex, self.choice or None, grammar)

    def ending(self) -> dict[str, Any]:
        """Where the text stops, and what is reported of it, as keywords of `LanguageModel.stream`."""
        return {"stop": tuple(self.stop or ()), "constraint": self.constraint(), "logprobs": self.logprobs}

    def check(self, as_json: bool, single: dict[str, bool]) -> None:
        """Raise `UserError` for empty texts, log-probabilities without JSON, several texts with an option of one."""
        for name, texts in (("stop", self.stop), ("choice", self.choice)):
            if "" in (texts or ()):
                raise UserError("empty", field=name, accepted="a text")
        if self.logprobs is not None and not as_json:
            raise UserError("is part of what --json prints; add --json", field="logprobs", value=self.logprobs)
        guesses = {name: is_typed for name, is_typed in self.alone.items() if name != "--beams"}
        for name, is_typed in {**single, **guesses}.items():
            for field, count in (("n", self.n), ("best_of", self.best_of or 1)):
                if count > 1 and is_typed:
                    raise UserError(f"{name} is of one text; leave one of them out", field=field, value=count)
        if self.best_of is not None and self.n > 1:
            raise UserError("--json has all of them; leave out --n", field="best_of", value=self.best_of)
        if self.reward is not None and self.best_of is None:
            raise UserError("chooses among several texts; add --best-of", field="reward", value=self.reward)
        for own in (name for name, is_typed in self.alone.items() if is_typed):
            for name, is_typed in single.items():
                kept = name in ("--save-state", "--load-state") and own != "--beams"
                if is_typed and name != "--show-context" and not kept:
                    raise UserError(f"{own}: it has no {name}; leave one of them out")
        for field in ("length_penalty", "early_stopping"):
            value = getattr(self, field)
            if value is not None and self.beams is None:
                raise UserError("is of a search for the best text; add --beams", field=field, value=value)

    def search(self) -> dict[str, Any]:
        """The settings of a beam search that were given, as keywords of `LanguageModel.beam_search`."""
        stops: dict[str, EarlyStopping] = {"true": True, "false": False, "never": "never"}
        found: dict[str, Any] = {} if self.length_penalty is None else {"length_penalty": self.length_penalty}
        return found if self.early_stopping is None else {**found, "early_stopping": stops[self.early_stopping]}

    def asked(self) -> dict[str, bool]:
        """Whether each option differs from its default, by name."""
        usual = vars(ContinuationOptions())
        return {f"--{field.replace('_', '-')}": value != usual[field] for field, value in vars(self).items()}

    @property
    def alone(self) -> dict[str, bool]:
        """Whether guesses and beams are asked for, by option."""
        return {
            "--draft": self.draft is not None,
            "--prompt-lookup": self.prompt_lookup != 0,
            "--beams": self.beams is not None,
        }


@dataclass(frozen=True)
class ToolOptions:
    """The tools that a model may call while it answers."""

    tools: Annotated[
        list[str] | None,
        option(
            "calculator|FILE.py",
            "Tools that the model may call: a calculator, or the functions of a file (repeatable).",
        ),
    ] = None
    tool_rounds: Annotated[
        int | None, option("N", "With --tools: how often the model may call them before it answers. Default: 4.", min=1)
    ] = None

    def load(self) -> "tuple[Tools | None, int]":
        """The tools that were named, and the number of rounds of calls; `UserError` for rounds without tools."""
        from linnet.data.tools import MAX_ROUNDS, load_tools

        if not self.tools:
            if self.tool_rounds is not None:
                raise UserError(field="tool_rounds", value=self.tool_rounds, accepted="--tools beside it")
            return None, 0
        return load_tools(self.tools), MAX_ROUNDS if self.tool_rounds is None else self.tool_rounds


def _file_or_text(given: str, name: str, is_text: bool) -> str:
    """The content of the file that is given, or the text itself if there is no such file and it has the form of one.

    Rules and schemas have characters that paths may have as well, such as the colon of a drive.
    """
    try:
        is_file = Path(given).is_file()
    except OSError:  # a text that is too long for a name
        is_file = False
    return given if is_text and not is_file else _read(given, name)


def _read(path: str, name: str) -> str:
    """The text of a file; `UserError` if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return read_whole(file, f"{name} {path}").decode()
    except OSError as error:
        accepted = "a file, or the text itself"
        raise UserError(f"{name} {path}: {error.strerror or error}", accepted=accepted) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name} {path}: not UTF-8 text (byte {error.start})") from None


def logprobs_report(events: "list[TextEvent]") -> list[dict[str, Any]]:
    """The tokens of a text for JSON: each with its bytes, its log-probability, and the likeliest at its place."""

    def described(choice: "TokenChoice") -> dict[str, Any]:
        return {
            "token": choice.token,
            "text": choice.text,
            "bytes": list(choice.bytes),
            "logprob": choice.logprob,
        }

    return [described(event.choice) | {"top": [described(choice) for choice in event.top]} for event in events]
