"""`linnet chat`: a conversation with a model in the terminal."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linnet.cli import process
from linnet.cli.console import note, notes_after_text
from linnet.cli.layer_options import DefaultCachePolicy
from linnet.cli.options import MachineOptions, with_option_groups
from linnet.cli.text_options import SamplingOptions, StopTexts, ToolOptions
from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.data.chat_template import ChatTemplate
    from linnet.data.tools import ToolCall, Tools
    from linnet.inference.cache_policy import CachePolicies
    from linnet.inference.engine import Engine
    from linnet.inference.language_model import LanguageModel
    from linnet.inference.sampling import Sampling

USUAL = ("--system", "--tools", "--max-tokens", "--temperature", "--top-p", "--seed", "--device", "--precision")
"""The options that the short help shows."""

COMMANDS = {
    "/system TEXT": "begin anew with this system message; without a text, with none",
    "/retry": "answer the last message again",
    "/rewind [N]": "take back the last N questions with their answers (1)",
    "/fork": "remember this point; /back returns to the last one",
    "/back": "return to the point of the last /fork",
    "/save FILE": "write the conversation as JSON",
    "/load FILE": "go on with a saved conversation",
    "/show": "show the text that the model reads",
    "/help": "show this list",
    "/quit": "end; so does Ctrl-D",
}

ARGUMENTS = dict(command.partition(" ")[::2] for command in COMMANDS)
"""What stands behind each command; nothing behind most."""

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters except the line end and the tabulator: on a terminal they move the cursor, or change its title."""

MAX_REWIND_DIGITS = 9

STOPPED, NOT_RUN = "error: stopped by the user", "error: not run"
"""What the model reads of a call of a tool that Ctrl-C stopped, and of the calls behind it."""

KEPT_BYTES = 256 << 20
"""Of states of the conversation and its forks, so that nothing is read twice."""


@with_option_groups
def chat(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or the folder of a training run.")],
    system: Annotated[str, typer.Option(help="A system message, which stands before the conversation.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of an answer.")] = 512,
    *,
    choice: SamplingOptions,
    stop: StopTexts = None,
    calling: ToolOptions,
    machine: MachineOptions,
    cache_policy: DefaultCachePolicy = None,
) -> None:
    """Talk with a model.

    Example: linnet chat models/smollm2 --system "Answer briefly."

    A conversation is read as the model's own chat template writes it; a base model, which has none, reads a plain
    transcript (User: ... Assistant:). Ctrl-C stops an answer or a tool, not the program. Lines that begin with a slash
    are commands; /help lists them. Control characters of an answer are printed as escapes. Without a terminal the
    messages are the lines of the standard input.

    --tools runs the calls in an answer and tells the model their results, which are shown as [NAME] RESULT; the model
    then goes on. A tool is each public function of a Python file, which the chat template lists, or the calculator of
    the story world, which a system message announces unless --system gives another.

    Example: linnet chat runs/chat --tools calculator --tools my_tools.py

    --cache-policy says what the layers keep of the conversation, so that some models answer in constant memory
    (docs/inference.md).

    Example: linnet chat runs/ted --cache-policy bank
    """
    from linnet.inference.cache_policy import layer_cache_policies
    from linnet.inference.engine import Engine
    from linnet.inference.language_model import load
    from linnet.inference.prefix_store import PrefixStore
    from linnet.inference.text_events import stop_texts
    from linnet.inference.tool_loop import announced
    from linnet.layers.cache_policy import FULL

    stops = stop_texts(stop or ())
    machine.set_up()
    loaded = load(model, machine.device, machine.precision).parsing_special()
    policies = layer_cache_policies(loaded.decoder, cache_policy or FULL)  # refused before anything is asked
    template = loaded.chat_template
    if template.is_plain:
        note(f"{model}: no chat template: the conversation is read as a plain transcript")
    engine = Engine(loaded.decoder, vocab_size=loaded.tokenizer.vocab_size, prefixes=PrefixStore(KEPT_BYTES))
    tools, rounds = calling.load()
    conversation = Conversation(
        loaded, template, engine, choice.sampling(), max_tokens, tools, rounds, stops=stops, cache_policy=policies
    )
    conversation.begin(system)
    conversation.messages = announced(conversation.messages, tools)
    for line in _lines():
        try:
            if not line.startswith("/"):
                conversation.say(line)
            elif not conversation.command(line):
                return
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
        except KeyboardInterrupt:  # between the steps of an answer, or in a command
            note("interrupted")


def _lines() -> Iterator[str]:
    """The lines of the user, which are not empty; with a history and editing on a terminal."""
    read: Callable[[], str] = input
    if sys.stdin.isatty():
        try:
            from prompt_toolkit import PromptSession
            from prompt_toolkit.completion import WordCompleter
        except ImportError:
            note("without history and completion: pip install 'linnet[chat]'")
        else:
            words = [command.split()[0] for command in COMMANDS]
            session: PromptSession[str] = PromptSession("> ", completer=WordCompleter(words, sentence=True))
            read = session.prompt
    while True:
        try:
            process.forget_interruption()
            sys.stdout.flush()  # `input` does it, too, and drops the exception of a signal that comes meanwhile
            line = read().strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            continue
        if line:
            yield line


def shown(text: str) -> str:
    r"""Text of a model as it is printed, with escapes (`\x1b`) in place of control characters; other text is kept."""
    return CONTROLS.sub(lambda control: f"\\x{ord(control[0]):02x}", text)


@contextmanager
def _file_errors(command: str) -> Iterator[None]:
    """`UserError` where the system refuses a file or fails, such as for a full disk: the conversation goes on."""
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        path, reason = getattr(error, "filename", None), getattr(error, "strerror", None) or str(error)
        place = f"{path}: " if path is not None and not command.endswith(f" {path}") else ""
        raise UserError(f"{command}: {place}{reason}") from None


@dataclass
class Conversation:
    """The messages so far, and the model that answers.

    sampling: of the next answer; each further one, or one that is tried again, has the next seed. tools: that the model
    may call; None: none. rounds: how often it may, before it has to answer. stops: texts that end an answer, beside
    those of the template. cache_policy: what the layers keep of the conversation.
    """

    model: "LanguageModel"
    template: "ChatTemplate"
    engine: "Engine"
    sampling: "Sampling"
    max_tokens: int
    tools: "Tools | None" = None
    rounds: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    forks: list[list[dict[str, Any]]] = field(default_factory=list)
    stops: tuple[str, ...] = ()
    cache_policy: "CachePolicies" = "full"

    def begin(self, system: str) -> None:
        """An empty conversation."""
        self.messages = [{"role": "system", "content": system}] if system else []

    @notes_after_text()
    def say(self, text: str) -> None:
        """Add a message, and print the answer as it grows; Ctrl-C ends it, and what has come stays.

        Calls of tools in an answer are run, and the model goes on with their results, unless Ctrl-C stops one.
        """
        before, self.messages = self.messages, [*self.messages, {"role": "user", "content": text}]
        try:
            self._go_on()
        except (UserError, KeyboardInterrupt):
            self.messages = before
            raise

    def _go_on(self) -> None:
        """Answer, and as long as the answer calls tools, run them and answer again."""
        for left in range(self.rounds, -1, -1):
            answer, is_whole = self._answer()
            self.messages.append({"role": "assistant", "content": answer})
            calls = self.tools.calls(answer) if self.tools is not None and is_whole else []
            if not calls:
                return
            if not left:
                note(f"note: {self.rounds} rounds of calls; the last one is not run (--tool-rounds)")
                return
            if not self._run_tools(calls):
                return

    def _run_tools(self, calls: "list[ToolCall]") -> bool:
        """Run calls, print their results and add them to the messages; False if Ctrl-C stopped one.

        The calls behind that one are not run, but have a message as well: some templates refuse a call without one.
        """
        from linnet.data.tools import result_message

        assert self.tools is not None
        is_stopped = False
        for call in calls:
            try:
                content = NOT_RUN if is_stopped else self.tools.run(call)
            except KeyboardInterrupt:
                content, is_stopped = STOPPED, True
            process.forget_interruption()  # the tool may have swallowed SIGTERM
            print(f"[{shown(call.name)}] {shown(content)}")
            self.messages.append(result_message(call, content))
        return not is_stopped

    def _answer(self) -> tuple[str, bool]:
        """Print an answer to the messages so far; its text, and False if it was stopped."""
        from linnet.inference.cache_policy import open_ended_policies
        from linnet.inference.prefill import room_behind
        from linnet.inference.sampling import following_seed
        from linnet.inference.streams import Request
        from linnet.inference.text_events import TextEvents

        prompt = self.model.prompt_tokens(self._text())
        try:
            room = room_behind(self.model.decoder, prompt, self.max_tokens)
        except UserError as error:
            raise UserError(f"{error} (/rewind takes back questions, /system begins anew)") from None
        policies = open_ended_policies(self.model.decoder, self.cache_policy, len(prompt) + room)
        request = Request(prompt, room, self.sampling, self.model.tokenizer.end_ids, keep_state=False)
        stream = self.engine.submit(replace(request, cache_policy=policies))
        stops = (*self.template.stops, *self.stops)
        texts, answer, is_whole = TextEvents(self.model.tokenizer, prompt, stops), "", True
        try:
            for event in stream:
                for part in texts.push(event):
                    answer += part.text
                    print(shown(part.text), end="", flush=True)
                if texts.has_stopped:
                    break
        except KeyboardInterrupt:
            print(" [stopped]", end="")
            is_whole = False
        finally:
            stream.cancel()
        rest = "".join(part.text for part in texts.finish())
        print(shown(rest))
        if room < self.max_tokens and stream.finish_reason == "length":
            note(f"note: the answer ends where the context of {self.model.spec.context_length:,} tokens is full")
        self.sampling = replace(self.sampling, seed=following_seed(self.sampling.seed))
        return answer + rest, is_whole

    def _text(self, add_generation_prompt: bool = True) -> str:
        """The text of the conversation, in which the template may list the tools."""
        from linnet.inference.tool_loop import render

        return render(self.template, self.messages, self.tools, add_generation_prompt)

    def command(self, line: str) -> bool:
        """Do what a command says; False for the one that ends the program."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest and name in (*ARGUMENTS, "/exit") and not ARGUMENTS.get(name):
            raise UserError(f"{name} {rest}: nothing is accepted behind {name}")
        if name in ("/quit", "/exit"):
            return False
        if name == "/system":
            self.begin(rest)
        elif name == "/retry":
            self.say(self._taken_back(1))
        elif name == "/rewind":
            if not (rest or "1").isdecimal() or len(rest) > MAX_REWIND_DIGITS:
                raise UserError(f"/rewind {rest}: expected a number of questions")
            self._taken_back(int(rest or 1))
            print(f"{len(self.messages)} messages", file=sys.stderr)
        elif name == "/fork":
            self.forks.append(list(self.messages))
        elif name == "/back":
            if not self.forks:
                raise UserError("/back: there is no /fork to return to")
            self.messages = self.forks.pop()
        elif name == "/save":
            self._save(rest)
        elif name == "/load":
            self._load(rest)
        elif name == "/show":
            print(shown(self._text(add_generation_prompt=False)) if self.messages else "")
        elif name == "/help":
            width = max(map(len, COMMANDS))
            print("\n".join(f"{command.ljust(width)}  {meaning}" for command, meaning in COMMANDS.items()))
        else:
            known = ", ".join(command.split()[0] for command in COMMANDS)
            raise UserError(f"{name}: unknown command; expected one of {known}")
        return True

    def _taken_back(self, number: int) -> str:
        """Take back the last questions with their answers; returns the first of these questions."""
        questions = [place for place, message in enumerate(self.messages) if message["role"] == "user"]
        if not 1 <= number <= len(questions):
            raise UserError(f"{number} questions: the conversation has {len(questions)}")
        place = questions[-number]
        text = str(self.messages[place]["content"])
        self.messages = self.messages[:place]
        return text

    def _save(self, name: str) -> None:
        from linnet.core.files import write_json

        if not name:
            raise UserError("/save: expected the name of a file")
        with _file_errors(f"/save {name}"):
            write_json(Path(name), {"model": self.model.spec.name, "messages": self.messages})
        print(f"conversation: {name}", file=sys.stderr)

    def _load(self, name: str) -> None:
        from linnet.core.files import read_json

        with _file_errors(f"/load {name}"):
            plain = read_json(Path(name))
        messages = plain.get("messages") if isinstance(plain, dict) else None
        accepted = "messages, a list with the role and content of each, as /save writes it"
        if not isinstance(messages, list) or not all(
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
            for message in messages
        ):
            raise UserError(f"{name}: expected {accepted}")
        self.messages = messages
        print(f"{len(messages)} messages", file=sys.stderr)
