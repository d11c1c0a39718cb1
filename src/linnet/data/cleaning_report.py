"""What cleaning did: documents and bytes of each step, with examples, as tables and a diagram."""

from dataclasses import asdict, dataclass, field
from typing import Any

from linnet.core.errors import one_line
from linnet.data.cleaning_steps import CleanedText
from linnet.data.text_folder import EXAMPLES, Amount
from linnet.present.flow import Flow
from linnet.present.result import Picture, Result
from linnet.present.table import Table

_EXAMPLE_CHARACTERS = 200


@dataclass
class StepReport:
    """A step: the documents it read, those it removed, and the bytes it took out of documents that it kept."""

    step: str
    read: Amount = field(default_factory=Amount)
    removed: Amount = field(default_factory=Amount)
    trimmed_bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    examples: list[dict[str, str]] = field(default_factory=list)


@dataclass
class CleaningReport:
    """What was read, what stays, and what each step did."""

    steps: list[StepReport]
    read: Amount = field(default_factory=Amount)
    kept: Amount = field(default_factory=Amount)
    files: list[str] = field(default_factory=list)

    def add(self, outcome: CleanedText) -> None:
        """Count a document."""
        self.read = Amount(self.read.documents + 1, self.read.bytes + outcome.bytes[0])
        last = len(outcome.bytes) - 2
        for number, (before, after) in enumerate(zip(outcome.bytes, outcome.bytes[1:], strict=False)):
            step = self.steps[number]
            step.read = Amount(step.read.documents + 1, step.read.bytes + before)
            if outcome.reason is None or number < last:
                step.trimmed_bytes += before - after
                continue
            step.removed = Amount(step.removed.documents + 1, step.removed.bytes + before)
            step.reasons[outcome.reason] = step.reasons.get(outcome.reason, 0) + 1
            if len(step.examples) < EXAMPLES:
                text = one_line(outcome.text, _EXAMPLE_CHARACTERS)
                step.examples.append({"reason": outcome.reason, "text": text})
        if outcome.reason is None:
            self.kept = Amount(self.kept.documents + 1, self.kept.bytes + outcome.bytes[-1])


@dataclass(frozen=True)
class CleaningResult(Result):
    """A report as tables and a diagram."""

    report: CleaningReport

    def title(self) -> str:
        return "Cleaning"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self.report)

    def tables(self) -> list[Table]:
        steps = self.report.steps
        rows = [("read", f"{self.report.read.documents:,}", f"{self.report.read.bytes:,}", "")]
        for step in steps:
            removed = f"{step.removed.documents:,}", f"{step.removed.bytes:,}"
            rows.append((f"removed by {step.step}", *removed, f"{step.trimmed_bytes:,}"))
        rows.append(("kept", f"{self.report.kept.documents:,}", f"{self.report.kept.bytes:,}", ""))
        examples = [(step.step, one["reason"], one["text"]) for step in steps for one in step.examples]
        reasons = [(step.step, reason, f"{count:,}") for step in steps for reason, count in step.reasons.items()]
        tables = [Table("Steps", ("", "documents", "bytes", "bytes cut from others"), rows)]
        if examples:
            tables.append(Table("Reasons", ("step", "reason", "documents"), reasons))
            tables.append(Table("Removed, for example", ("step", "reason", "text"), examples, text=True))
        return tables

    def plots(self) -> list[Picture]:
        report = self.report
        taken = [(one.step, (one.removed.documents, one.removed.bytes + one.trimmed_bytes)) for one in report.steps]
        flow = Flow(("documents", "bytes"), (report.read.documents, report.read.bytes), taken)
        caption = "From left to right: what each step takes out of the text, to scale, and the share that stays."
        return [Picture("flow", "Documents and bytes through the steps", flow, caption)]
