"""The training loop.

    while step < steps and no stop is requested:
        take a step
        run the callbacks that are due

The content of a batch follows from the seed and its number, the learning rate from the step, and the first weights from
the seed. Weights, optimizer state and a few plain numbers (`TrainState`) are therefore the whole state of a run: a run
that is stopped and resumed ends bit for bit where an uninterrupted one ends. `state` lists these numbers; `checkpoint`
writes them and puts a run back into the state of a checkpoint.
"""

import math
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from linnet import __version__
from linnet.core.errors import is_out_of_memory
from linnet.core.system import Stopped, StopRequest
from linnet.data.loader import Batch, Batches
from linnet.data.mixed_batches import MixedBatches
from linnet.data.packing import PackedBatches
from linnet.data.preferences import PreferenceBatches
from linnet.data.rearranged_batches import BatchRearranger
from linnet.data.replay import ReplayBatches, open_replayed
from linnet.data.token_data import TokenData
from linnet.data.workers import ReadAhead
from linnet.model.decoder import Decoder, decoder_with_weights
from linnet.model.folder import published_files
from linnet.model.store import write_model
from linnet.training.callbacks import Callback, SkipStepError, TrainingContext
from linnet.training.callbacks.evaluation import Evaluate
from linnet.training.callbacks.guard import Guard
from linnet.training.callbacks.log import Log, MixtureReport, ProcessStats, Steadiness, Workload
from linnet.training.callbacks.preferences import Preferences
from linnet.training.callbacks.replay import Replay
from linnet.training.callbacks.rollouts import Rollouts
from linnet.training.callbacks.saving import Averaging, Checkpointing, DrawCurves
from linnet.training.callbacks.trackers import Trackers
from linnet.training.checkpoint import CheckpointWriter, checkpoint_steps, discard_after, find_newest, restore
from linnet.training.data import chat_files_of, check_data, mixture_note, packing_note, training_batches
from linnet.training.distributed import Processes
from linnet.training.initialization import (
    EMBEDDING_FROM,
    START_FROM,
    TEACHER,
    grown_tensors,
    initial_decoder,
    load_word_vectors,
    uninitialized_decoder,
)
from linnet.training.lora import (
    add_lora,
    few_bit_note,
    few_bit_weights,
    low_rank_parameters,
    merged_state_dict,
    write_adapter,
)
from linnet.training.machine import (
    check_memory,
    configured_precision,
    kept_peak,
    measure_precision,
    too_short_to_measure,
)
from linnet.training.metrics import ADAPTER_FOLDER
from linnet.training.objectives import Objective
from linnet.training.objectives.configure import configure_objective
from linnet.training.optimizers import build_optimizer
from linnet.training.parallel import ParallelModel, with_fitting_shard
from linnet.training.reporter import Reporter
from linnet.training.rollout_batches import RolloutBatches
from linnet.training.run_folder import RunFolder, diverged_error
from linnet.training.schedule import StepBudget, learning_rate
from linnet.training.separation import check_separation
from linnet.training.spec import RunSpec
from linnet.training.state import TrainState
from linnet.training.step import Iterate, NonFiniteError, Stepper, StepResult, too_large


class Trainer:
    """A run in memory. `UserError` if it cannot be trained; nothing is written before `resume`."""

    def __init__(
        self,
        run: RunSpec,
        data: TokenData,
        folder: RunFolder,
        objective: Objective,
        reporter: Reporter,
        stop: StopRequest,
        processes: Processes,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        # What this machine and these processes can do.
        resumes = bool(checkpoint_steps(folder.checkpoints))
        spec = with_fitting_shard(run.training, processes, reporter.note) if resumes else run.training
        assert spec.steps is not None, "an unresolved run"
        processes.check_batch(spec.batch_size)
        for _, smaller in spec.growth.batch_size:
            processes.check_batch(smaller, "training.growth.batch_size")
        device = processes.device(spec.device)
        precision = configured_precision(spec, device) or folder.precision() or too_short_to_measure(run)
        dtype = torch.bfloat16 if precision is None else precision.dtype

        # Data, model and objective. A resumed run reads its weights from a checkpoint.
        self.batches = training_batches(data, run)
        lengths = self.batches.mean_lengths
        check_memory(run.model_copy(update={"training": spec}), device, dtype, processes, lengths)
        for text in (mixture_note(run, data), packing_note(self.batches)):
            if text is not None:
                reporter.note(text)
        byte_counts = data.tokenizer.byte_counts()
        evaluate = Evaluate(data, spec, byte_counts, run.model.encoder is not None)
        decoder, state = (
            (uninitialized_decoder(run), TrainState(data.hash, seed=spec.seed))
            if resumes
            else _initial(run, data, processes, reporter)
        )
        if resumes and spec.lora is not None:
            add_lora(decoder, spec.lora, spec.seed, grown_tensors(run, data))
        decoder = decoder.to(device)
        if spec.lora is not None and spec.lora.precision != "float32":
            reporter.note(few_bit_note(decoder, spec.lora))
        rows = self.batches.rows if isinstance(self.batches, ReplayBatches) else self.batches
        if data.is_rows and not resumes and isinstance(rows, Batches | PackedBatches):
            check_separation(decoder, rows, reporter.note)
        objective = configure_objective(objective, spec, decoder, data)
        last = spec.gradient_accumulation * spec.steps - 1  # no batch is larger
        self.precision = precision or processes.broadcast_from_rank0(
            lambda: measure_precision(decoder, objective, self.batches.batch(last))
        )
        dtype = self.precision.dtype
        model = ParallelModel(decoder, spec, dtype, processes)
        optimizer = build_optimizer(spec.optimizer, decoder, dtype)
        minimized = torch.compile(objective) if spec.compile and processes.count == 1 else objective
        fill = spec.fill_in_the_middle
        self._rearranger = None if fill is None else BatchRearranger(fill, data.tokenizer, spec.seed)
        self._batches_ahead = ReadAhead(self._batches_at)
        bytes_of_text = byte_counts.to(device)
        self.take_step = Stepper(model, minimized, optimizer, spec.clip, dtype, bytes_of_text, self._check_update)
        self.context = TrainingContext(
            run, spec, data, folder, reporter, stop, processes, device, model, optimizer, state, StepBudget(spec.steps)
        )
        self._add_callbacks(evaluate, callbacks)

    def _add_callbacks(self, evaluate: Evaluate, own: Sequence[Callback]) -> None:
        """Add the callbacks in the order in which their hooks are called."""
        context, spec, processes = self.context, self.context.spec, self.context.processes
        workload = Workload(context.run, self.batches)
        self.peak = processes.broadcast_from_rank0(lambda: kept_peak(context.device, self.precision.dtype))
        peak = None if self.peak is None else self.peak.flops_per_s / (3 * workload.flops_per_token)
        total = None if peak is None else processes.count * peak
        guard = None if spec.guard is None else Guard(spec.guard)
        on_one_cpu = context.device.type == "cpu" and processes.count == 1
        self.checkpointing = Checkpointing(CheckpointWriter(processes, spec.parallel.shard), evaluate, guard)
        self.callbacks = context.callbacks
        self.callbacks += [
            *([] if spec.averaging is None else [Averaging(spec.averaging, context.model.decoder)]),
            Steadiness(torch.get_num_threads(), on_one_cpu),
            *([] if guard is None else [guard]),
            evaluate,
            *(
                [Preferences(context.run, context.data, self.batches, evaluate, self.precision.dtype)]
                if isinstance(self.batches, PreferenceBatches)
                else []
            ),
            *(
                [Rollouts(context.run, context.data, self.batches, evaluate, self.precision.dtype)]
                if isinstance(self.batches, RolloutBatches)
                else []
            ),
            *self._replay(evaluate),
            *([MixtureReport(self.batches)] if isinstance(self.batches, MixedBatches) else []),
            Log(evaluate, workload, ProcessStats(processes, context.device, peak), total),
            Trackers(spec.trackers if processes.is_rank0 else (), context.folder, context.run),
            *own,
            DrawCurves(),
            self.checkpointing,
        ]
        for callback in self.callbacks:
            callback.context = context

    def _replay(self, evaluate: Evaluate) -> list[Callback]:
        """What measures the text that a run on conversations replays, if it does."""
        run, data, replay = self.context.run, self.context.data, self.context.spec.replay
        if replay is None or not isinstance(self.batches, ReplayBatches):
            return []
        return [Replay(run, data, open_replayed(str(replay.data), data), self.batches, evaluate)]

    def _check_update(self, loss: float, gradient_norm: float) -> SkipStepError | None:
        """The first callback's reason not to make an update."""
        return next(filter(None, (each.check_update(loss, gradient_norm) for each in self.callbacks)), None)

    def resume(self) -> None:
        """Continue from the newest undamaged checkpoint, if there is one; what comes after it is removed."""
        self._load_newest()
        context, training = self.context, self.context.run.training
        folder, processes = context.folder, context.processes
        before = processes.broadcast_from_rank0(lambda: folder.configuration().training.steps)
        budget = processes.broadcast_from_rank0(lambda: folder.step_budget(context.run, context.state.step))
        if before != budget.steps:
            step, steps = budget.history[-1].step, budget.steps
            note = f"extended at step {step}: {steps} steps instead of {budget.history[-1].before}"
            if step > 0:  # the rate may jump
                old = learning_rate(training.schedule, training.optimizer.lr, step, budget.history[-1].before)
                new = learning_rate(training.schedule, training.optimizer.lr, step + 1, steps)
                rates = f"learning rate {new:.2e} now, {old:.2e} before"
                note += f"; the schedule ({training.schedule.kind}) spans all steps: {rates}"
            context.reporter.note(note)
        context.budget = budget

    def _load_newest(self) -> None:
        context, decoder = self.context, self.context.model.decoder
        folder, checkpoints, note = context.folder, context.folder.checkpoints, context.reporter.note
        checkpoint = find_newest(checkpoints, decoder, note, context.processes)
        if checkpoint is not None:
            check_data(checkpoint.state.data_hash, context.data, folder.path)
            context.state = checkpoint.state
            note(f"resuming from step {context.state.step} ({checkpoint.path})")
        elif checkpoint_steps(checkpoints):  # all of them are damaged
            first, context.state = _initial(context.run, context.data, context.processes, context.reporter)
            context.model.load(first.state_dict())
        restore(checkpoint, decoder, context.optimizer, self.callbacks)
        state = context.state
        self.checkpointing.saved = state.step, state.callbacks_done

        def discard_later() -> None:
            discard_after(checkpoints, state.step)
            self.checkpointing.pruning()()  # a process that was killed after its last checkpoint had no time for it
            logged = state.step if state.callbacks_done else state.step - 1
            folder.metrics.cut(logged, folder.expected_steps(logged))

        context.processes.broadcast_from_rank0(discard_later)
        for callback in self.callbacks:
            callback.on_load()

    def run_steps(self) -> None:
        """Train to the end or until a stop is requested; leave a checkpoint of the last step."""
        context, stop = self.context, self.context.stop
        context.reporter.begin(context.state.step, context.budget.steps)
        self._run_callbacks()  # those that a stop left
        stopping = context.processes.any(stop.requested)
        while context.state.step < context.budget.steps and not stopping:
            if self._step():
                self._run_callbacks()
            stopping = context.processes.any(stop.requested)
        state = context.state
        if stopping:
            context.reporter.note(f"stop requested: saving step {state.step}")
        if state.step > 0 and self.checkpointing.saved != (state.step, state.callbacks_done):
            self.checkpointing.save()

    def _step(self) -> bool:
        """Take a step; False if it was not taken: a stop was requested, or its data is skipped."""
        context, state, start_s = self.context, self.context.state, time.perf_counter()
        for callback in self.callbacks:
            callback.before_step()
        number = state.step + 1
        lr = learning_rate(context.spec.schedule, context.spec.optimizer.lr, number, context.budget.of(number))
        batches = self._read_batches(state.data_position, is_last=number == context.budget.steps)
        data_wait_s = time.perf_counter() - start_s
        orthogonalizing_s = context.optimizer.orthogonalizing.seconds
        result = self._update(batches, lr)
        if result is None:
            return False
        result = replace(
            result,
            elapsed_s=time.perf_counter() - start_s,
            data_wait_s=data_wait_s,
            orthogonalizing_s=context.optimizer.orthogonalizing.seconds - orthogonalizing_s,
        )
        state.step, state.data_position, state.tokens = number, state.data_position + 1, state.tokens + result.tokens
        state.lr, state.gradient_norm = result.lr, result.gradient_norm
        state.elapsed_s += result.elapsed_s
        state.callbacks_done = False
        for callback in self.callbacks:
            callback.after_update(result)
        return True

    def _read_batches(self, position: int, is_last: bool) -> list[Batch]:
        """The batches of the step at a position of the data; those of the next step are read while it is taken."""
        # Answers are drawn by the model, after the step before.
        alone = is_last or isinstance(self.batches, RolloutBatches)
        return self._batches_ahead.take(position, None if alone else position + 1)

    def _batches_at(self, position: int) -> list[Batch]:
        count, rearranger = self.context.spec.gradient_accumulation, self._rearranger
        numbers = range(position * count, (position + 1) * count)
        batches = [self.batches.batch(number) for number in numbers]
        if rearranger is None:
            return batches
        return [rearranger.rearranged(batch, number) for batch, number in zip(batches, numbers, strict=True)]

    def _update(self, batches: list[Batch], lr: float) -> StepResult | None:
        """Update the weights; None if a stop was requested, or a callback refused the update."""
        context, step, checkpoints = self.context, self.context.state.step, self.context.folder.checkpoints
        # One process may stop between two batches, several only after the step.
        iterate: Iterate = context.stop.until_requested if context.processes.count == 1 else iter
        try:
            return self.take_step(batches, lr, iterate)
        except Stopped:
            return None
        except SkipStepError as skipped:
            self._skip(skipped)
            return None
        except NonFiniteError as error:
            good = step if math.isfinite(error.loss) else step - 1
            raise diverged_error(checkpoints, step + 1, str(error), good) from None
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler the error is gone, and with it what it held of the step.
        self.checkpointing.writer.wait()  # the others, who wait in the step, still finish writing
        saved = checkpoint_steps(checkpoints)
        newest = f"step {saved[-1]}" if saved else "none yet"
        raise too_large(self.take_step, batches, context.spec.batch_size, step + 1, newest)

    def _skip(self, skipped: SkipStepError) -> None:
        """Skip the data of the refused step, and with a rewind all data since that checkpoint."""
        context, target = self.context, skipped.rewind_to
        step, position = context.state.step + 1, context.state.data_position + 1
        before = {callback.name: callback.state_dict() for callback in self.callbacks}
        if target is not None:
            self.checkpointing.writer.wait()
            context.processes.broadcast_from_rank0(partial(discard_after, context.folder.checkpoints, target))
            self._load_newest()
            if context.state.step != target:  # it is damaged; the steps before it are repeated, and so is the spike
                return
        context.state.data_position = position
        for callback in self.callbacks:
            callback.on_skip(skipped, step, before[callback.name])
        if target is not None:
            self.checkpointing.save()

    def _run_callbacks(self) -> None:
        """Run the callbacks of this step unless they have run; a stop leaves them for later."""
        if self.context.state.callbacks_done:
            return
        try:
            for callback in self.callbacks:
                callback.after_step()
        except Stopped:
            return
        self.context.state.callbacks_done = True

    def finish(self, command: str | None) -> dict[str, Any]:
        """Write the model folder and the curves, wherever the run stands; returns the content of `run.json`."""
        self.checkpointing.writer.wait()
        context, summary = self.context, self._summary(command)
        with context.saved_weights():
            decoder = trained = context.model.whole()
            if context.spec.lora is not None:
                decoder = decoder_with_weights(decoder.spec, merged_state_dict(decoder))

            def write() -> None:
                published = published_files(context.run.start_from)
                others = context.data.tokenizer, summary, published, chat_files_of(context.run, context.data)
                if context.spec.lora is not None and context.run.start_from is not None:
                    base, sha256 = context.run.start_from, context.folder.hashes().get(START_FROM)
                    folder = context.folder.path / ADAPTER_FOLDER
                    write_adapter(folder, trained, base, sha256, context.spec.lora, *others)
                write_model(context.folder.model, decoder, *others)
                context.folder.draw_curves(context.run.model.name, decoder.causal)

            context.processes.broadcast_from_rank0(write)
        return summary

    def _summary(self, command: str | None) -> dict[str, Any]:
        """The content of `run.json`: how the model was made, and its figures.

        The weights are those of step `step`, or an average up to it (`averaging`). `validation` is the latest
        evaluation, `best` the one with the fewest bits per byte and its checkpoint; None before the first. `extensions`
        are those of the run.
        """
        context, run, state, device = self.context, self.context.run, self.context.state, self.context.device
        hashes, training = context.folder.hashes(), context.run.training
        parameters = set(context.model.decoder.parameters())
        trained = {parameter for parameter in parameters if parameter.requires_grad}
        in_few_bits, few_bit_bytes = few_bit_weights(context.model.decoder)
        figures: dict[str, Any] = {}
        for callback in self.callbacks:
            figures |= callback.summary()
        return {
            "finished": state.step == context.budget.steps and state.callbacks_done,
            "step": state.step,
            "steps": context.budget.steps,
            "tokens": state.tokens,
            "parameters": sum(map(Tensor.numel, parameters - low_rank_parameters(context.model.decoder))) + in_few_bits,
            "seconds": state.elapsed_s,
            "command": command,
            "configuration": context.folder.configuration_checksum(),
            "started_from": run.start_from and {"model": str(run.start_from), "sha256": hashes.get(START_FROM)},
            "embedding_from": training.embedding_from
            and {
                "file": str(training.embedding_from),
                "sha256": hashes.get(EMBEDDING_FROM),
                "tokens_found": state.word_vectors,
                "tokens": run.model.vocab_size,
            },
            "distillation": training.distillation
            and {**training.distillation.model_dump(mode="json"), "sha256": hashes.get(TEACHER)},
            "lora": training.lora
            and {
                **training.lora.model_dump(mode="json"),
                "parameters": sum(map(Tensor.numel, trained)),
                "few_bit_weights": in_few_bits,
                "few_bit_bytes": few_bit_bytes,
            },
            "seed": state.seed,
            "averaging": training.averaging and training.averaging.model_dump(),
            "extensions": context.budget.to_list(),
            "spikes": None,
            **figures,
            "data": {
                "path": str(run.data),
                "manifest_sha256": state.data_hash,
                "tokenizer_hash": context.data.tokenizer.hash,
            },
            "machine": {
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
                "precision": self.precision.name,
                "precision_reason": self.precision.reason,
                "peak": self.peak and asdict(self.peak),
                "threads": torch.get_num_threads(),
                "python": platform.python_version(),
                "torch": torch.__version__,
                "linnet": __version__,
            },
        }

    def close(self) -> None:
        self._batches_ahead.close()
        for callback in self.callbacks:
            callback.close()


def _initial(run: RunSpec, data: TokenData, processes: Processes, reporter: Reporter) -> tuple[Decoder, TrainState]:
    """The weights and the state that a run begins with."""
    decoder = initial_decoder(run, data)
    found, tokens = load_word_vectors(decoder, run, data, processes), run.model.vocab_size
    if found is not None:
        reporter.note(
            f"note: {EMBEDDING_FROM}: {run.training.embedding_from}: a word vector for {found:,} of {tokens:,} tokens"
            f" ({found / tokens:.1%}); the others begin with random vectors"
        )
    if run.training.lora is not None:
        add_lora(decoder, run.training.lora, run.training.seed, grown_tensors(run, data))
    return decoder, TrainState(data.hash, seed=run.training.seed, word_vectors=found)
