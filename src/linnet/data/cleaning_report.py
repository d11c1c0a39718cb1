"""What cleaning did: documents and bytes of each step, with examples, as tables and a diagram."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from linnet.core.errors import one_line
from linnet.data.cleaning_steps import CleanedText
from linnet.data.comparison import DeduplicationReport
from linnet.data.text_folder import EXAMPLES, Amount
from linnet.present.flow import Flow
from linnet.present.result import Picture, Result
from linnet.present.table import Table

_EXAMPLE_CHARACTERS = 200

COMPARISONS = {
    "decontamination": ("evaluation_overlap", "evaluation_copy"),
    "exact_duplicates": ("exact",),
    "near_duplicates": ("near",),
}
"""The reasons of `comparison.REASONS` for which each step that compares documents removes one."""


@dataclass
class StepReport:
    """A step: the documents it read, those it removed, and the bytes it took out of documents that it kept.

    reasons: documents by the reason to remove them. labels: those that stay by what was found in them, their language.
    """

    step: str
    read: Amount = field(default_factory=Amount)
    removed: Amount = field(default_factory=Amount)
    trimmed_bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    examples: list[dict[str, str]] = field(default_factory=list)


@dataclass
class CleaningReport:
    """What was read, what stays, and what each step did."""

    steps: list[StepReport]
    read: Amount = field(default_factory=Amount)
    kept: Amount = field(default_factory=Amount)
    files: list[str] = field(default_factory=list)

    def add(self, outcome: CleanedText, first: int = 0) -> None:
        """Count a document that went through the steps from number `first` on."""
        last = len(outcome.bytes) - 2
        for number, (before, after) in enumerate(zip(outcome.bytes, outcome.bytes[1:], strict=False)):
            step = self.steps[first + number]
            step.read.count(before)
            if outcome.reason is None or number < last:
                step.trimmed_bytes += before - after
                if (label := outcome.labels[number]) is not None:
                    step.labels[label] = step.labels.get(label, 0) + 1
                continue
            step.removed.count(before)
            step.reasons[outcome.reason] = step.reasons.get(outcome.reason, 0) + 1
            if len(step.examples) < EXAMPLES:
                text = one_line(outcome.row.text, _EXAMPLE_CHARACTERS)
                step.examples.append({"reason": outcome.reason, "text": text})

    def add_comparison(self, first: int, steps: int, found: DeduplicationReport) -> None:
        """Fill the reports of comparisons, which are side by side from number `first` on."""
        left = replace(found.read)
        for place, step in enumerate(self.steps[first : first + steps]):
            reasons = [*COMPARISONS[step.step], *(["empty"] if place == 0 else [])]
            step.read = replace(left)
            for reason in reasons:
                amount = found.removed[reason]
                step.removed = Amount(step.removed.documents + amount.documents, step.removed.bytes + amount.bytes)
                if amount.documents:
                    step.reasons[reason] = amount.documents
            left = Amount(left.documents - step.removed.documents, left.bytes - step.removed.bytes)
            examples = [example for example in found.examples if example.reason in reasons]
            step.examples = [
                {"reason": f"{one.reason} ({one.similarity:.2f})", "text": one.removed, "stays": one.stays}
                for one in examples[:EXAMPLES]
            ]

    def describe_removed(self) -> str:
        """How many documents each step removed."""
        found = [f"{step.removed.documents:,} {step.step}" for step in self.steps if step.removed.documents]
        return ", ".join(found) or "none"

    def join(self, later: "CleaningReport") -> None:
        """Add the counts of documents that follow, and that went through the first steps; `kept` and `files` stay."""
        for step, other in zip(self.steps, later.steps, strict=False):
            step.read, step.removed = step.read.plus(other.read), step.removed.plus(other.removed)
            step.trimmed_bytes += other.trimmed_bytes
            for own, further in ((step.reasons, other.reasons), (step.labels, other.labels)):
                for name, count in further.items():
                    own[name] = own.get(name, 0) + count
            step.examples = (step.examples + other.examples)[:EXAMPLES]
        self.read = self.read.plus(later.read)


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
        examples = [
            (step.step, one["reason"], one["text"], one.get("stays", "")) for step in steps for one in step.examples
        ]
        reasons = [(step.step, reason, f"{count:,}") for step in steps for reason, count in step.reasons.items()]
        tables = [Table("Steps", ("", "documents", "bytes", "bytes cut from others"), rows)]
        labels = [(step.step, label, f"{count:,}") for step in steps for label, count in step.labels.items()]
        if labels:
            tables.append(Table("Found in documents that stay", ("step", "", "documents"), labels))
        if examples:
            tables.append(Table("Reasons", ("step", "reason", "documents"), reasons))
            columns = "step", "reason", "text", "stays in its place"
            shown = 4 if any(example[3] for example in examples) else 3
            cells = [list(example[:shown]) for example in examples]
            tables.append(Table("Removed, for example", columns[:shown], cells, text=True))
        return tables

    def plots(self) -> list[Picture]:
        report = self.report
        taken = [(one.step, (one.removed.documents, one.removed.bytes + one.trimmed_bytes)) for one in report.steps]
        flow = Flow(("documents", "bytes"), (report.read.documents, report.read.bytes), taken)
        caption = "From left to right: what each step takes out of the text, to scale, and the share that stays."
        return [Picture("flow", "Documents and bytes through the steps", flow, caption)]
