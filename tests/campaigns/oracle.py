"""What a command may answer to an attack, and what not."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from campaigns.children import Outcome
from campaigns.outputs import Tree, differing, figures, tree

CODES = {0, 1, 2, 128 + 1, 128 + 2, 128 + 13, 128 + 15}
"""Done; failed; the user's input is wrong; ended by a signal."""

LINE = 300
"""Characters of an error at most."""

NOT_A_LINE = re.compile(r"Traceback|panicked at|Exception ignored|Fatal Python|terminate called|core dumped")
PANIC_TOLD = re.compile(r"panicked at[^$]*\nerror: [^\n]* library gave up on a text [^\n]*\n?$")
"""A library's own words, which nothing can hold back, and then the line."""

ESCAPES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]|[\udc80-\udcff]")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom")
"""What every program shares; a name of theirs that an administrator's process takes is lost to all."""

HALF = re.compile(r"\.(linnet-)?(partial|old|tmp|aside)(/|$)")
LOCK = re.compile(r"(^|/)\.[^/]*lock$")


class Fault(StrEnum):
    """What may be wrong; the table counts them."""

    TRACEBACK = "traceback"
    HANG = "hang"
    CHANGE = "silent change"
    LOSS = "loss"


@dataclass(frozen=True)
class Finding:
    """A fault of one input, in words."""

    fault: Fault
    told: str


def said(outcome: Outcome, mute: bool = False) -> list[Finding]:
    """What is wrong with how a command ended and what it said of it; nothing is expected of one that is `mute`."""
    if outcome.hung and not outcome.working:
        return [Finding(Fault.HANG, f"no end after {outcome.seconds:.0f} s; {_tail(outcome)}")]
    if outcome.hung:
        return []
    err = outcome.err
    if outcome.code == 2 and PANIC_TOLD.search(err):
        err = err.splitlines()[-1]
    if found := NOT_A_LINE.search(err) or NOT_A_LINE.search(outcome.out):
        return [Finding(Fault.TRACEBACK, f"{found[0]}: {_tail(outcome)}")]
    if outcome.code not in CODES:
        return [Finding(Fault.TRACEBACK, f"exit code {outcome.code}: {_tail(outcome)}")]
    return [Finding(Fault.TRACEBACK, told) for told in _unsaid(outcome, mute)]


def _unsaid(outcome: Outcome, mute: bool) -> list[str]:
    """An error is one line, not too long, that a terminal shows as it is."""
    if outcome.code not in (1, 2):
        return []
    lines = [line for line in outcome.err.split("\n") if line.strip()]
    if mute:
        return []
    if not lines:
        return [f"exit code {outcome.code} without a word"]
    last = lines[-1]
    if outcome.code == 2 and not last.startswith("error: "):
        return [f"exit code 2, and the last line is no error: {last[:LINE]}"]
    if len(last) > LINE:
        return [f"a line of {len(last)} characters: {last[:200]}..."]
    if found := ESCAPES.search(last.replace("\r", "")):
        return [f"{found[0]!r} reaches the terminal: {last!r}"]
    return []


def unheard(clean: "Clean", outcome: Outcome, name: str) -> list[Finding]:
    """Nobody listens at the standard error, if the attack's name says so: a command ends as ever."""
    if not name.startswith("stderr") or outcome.code == clean.outcome.code:
        return []
    return [Finding(Fault.LOSS, f"exit code {outcome.code} for {clean.outcome.code}, as nobody heard a word")]


def _tail(outcome: Outcome) -> str:
    """The innermost place in linnet that a traceback names, and the last lines."""
    places = re.findall(r'File "[^"]*/src/(linnet/[^"]+)", line (\d+)', outcome.err)
    lines = [line.strip() for line in outcome.err.splitlines() if line.strip(" ^~")]
    if not places:
        return " | ".join(lines[-3:])[-600:]
    return f"{places[-1][0]}:{places[-1][1]} | {(lines or [''])[-1][:400]}"


@dataclass(frozen=True)
class Clean:
    """A command undisturbed: how it ends, what stands before and after, what is different from run to run."""

    outcome: Outcome
    before: Tree
    after: Tree
    unsettled: frozenset[str]
    unsettled_out: bool

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.outcome.seconds

    def changed(self) -> list[str]:
        """What it makes or changes."""
        return differing(self.before, self.after)

    def differences(self, after: Tree) -> list[str]:
        """Outputs that are other than they should be."""
        return [name for name in differing(self.after, after) if name not in self.unsettled]


def changes(clean: Clean, outcome: Outcome, after: Tree, attacked: str, told: bool) -> list[Finding]:
    """Results other than the undisturbed ones, without a word on the attacked file."""
    if outcome.code != 0 or clean.outcome.code != 0 or told:
        return []
    mine = set(clean.changed())
    wrong = [n for n in clean.differences(after) if n in mine or (n not in clean.before and n != attacked)]
    wrong = [n for n in wrong if not (n == attacked and n not in clean.after)]
    if not clean.unsettled_out and figures(outcome.out) != figures(clean.outcome.out):
        wrong.append("standard output")
    return [Finding(Fault.CHANGE, f"exit code 0, other results: {', '.join(wrong[:6])}")] if wrong else []


def names(outcome: Outcome, clean: Clean, attacked: str) -> bool:
    """Whether a line that an undisturbed run does not say names the file, or the folder that stands for it."""
    usual = set(clean.outcome.err.splitlines())
    new = "\n".join(line for line in outcome.err.splitlines() if line not in usual)
    path = Path(attacked)
    return any(part in new for part in (str(path), path.name, str(path.parent)) if part not in (".", ""))


def leftovers(clean: Tree, after: Iterable[str]) -> list[str]:
    """What nobody made to be kept."""
    return [name for name in after if HALF.search(name) or (LOCK.search(name) and name not in clean)]


def canaries(folder: Path) -> Tree:
    """Files beside a workspace, which no command is told of."""
    folder.mkdir()
    for name in ("foreign.txt", "foreign.json", "foreign.safetensors"):
        (folder / name).write_text(f"what belongs to somebody else: {name}\n")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "kept.txt").write_text("kept\n")
    return tree(folder)


def foreign(before: Tree, folder: Path, more: bool = False) -> list[Finding]:
    """Canaries that are no longer what they were; where `more` may be there, those that are new do not count."""
    wrong = [name for name in differing(before, tree(folder)) if not more or name in before]
    wrong += [name for name in DEVICES if not Path(name).is_char_device()]
    return [Finding(Fault.LOSS, f"a foreign file was changed: {', '.join(wrong)}")] if wrong else []
