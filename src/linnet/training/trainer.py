"""The training loop.

    while step < steps and no stop is requested:
        take a step
        run the callbacks that are due

The content of a batch follows from the seed and its number, the learning rate from the step, and the first weights from
the seed. Weights, optimizer state and a few plain numbers (`TrainState`) are therefore the whole state of a run: a run
that is stopped and resumed ends bit for bit where an uninterrupted one ends. Resuming is here and in `checkpoint`.
"""

import math
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from linnet import __version__
from linnet.core.errors import is_out_of_memory
from linnet.data.loader import Batch
from linnet.data.token_data import TokenData
from linnet.model.decoder import Decoder
from linnet.training.callbacks import Callback, SkipStepError, TrainingContext
from linnet.training.callbacks.evaluation import Evaluate, HeldOut
from linnet.training.callbacks.guard import Guard
from linnet.training.callbacks.log import Log, ProcessStats, Steadiness, StepNotes, Workload
from linnet.training.callbacks.saving import Averaging, Checkpointing
from linnet.training.callbacks.trackers import Trackers
from linnet.training.checkpoint import CheckpointWriter, checkpoint_steps, discard_after, find_newest, load
from linnet.training.data import check_data, training_batches
from linnet.training.distributed import Processes, Stopped, StopRequest
from linnet.training.initialization import (
    EMBEDDING_FROM,
    START_FROM,
    initial_decoder,
    load_word_vectors,
    uninitialized_decoder,
    word_vector_note,
)
from linnet.training.machine import (
    check_memory,
    configured_precision,
    measure_precision,
    peak_flops_per_s,
    too_short_to_measure,
)
from linnet.training.objectives import Objective, configure_objective
from linnet.training.optimizers import build_optimizer, load_optimizer_tensors
from linnet.training.parallel import ParallelModel, with_fitting_shard
from linnet.training.reporter import Reporter
from linnet.training.run_folder import RunFolder, diverged_error
from linnet.training.schedule import StepBudget, extension_note, learning_rate
from linnet.training.spec import RunSpec
from linnet.training.state import TrainState
from linnet.training.step import NonFiniteError, Stepper, StepResult, too_large


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
        resumes = bool(checkpoint_steps(folder.checkpoints))
        spec = with_fitting_shard(run.training, processes, reporter.note) if resumes else run.training
        assert spec.steps is not None, "an unresolved run"
        processes.check_batch(spec.batch_size)
        for _, smaller in spec.growth.batch_size:
            processes.check_batch(smaller, "training.growth.batch_size")
        device = processes.device(spec.device)
        precision = configured_precision(spec, device) or folder.precision() or too_short_to_measure(run)
        dtype = torch.bfloat16 if precision is None else precision.dtype
        check_memory(run.model_copy(update={"training": spec}), device, dtype, processes)

        # Data, model and objective. A resumed run reads its weights from a checkpoint.
        batches = training_batches(data, run)
        token_bytes_V = torch.from_numpy(data.tokenizer.token_bytes()).to(device)
        held_out = HeldOut(data, spec, token_bytes_V, run.model.encoder is not None)
        self._word_vectors: int | None = None
        self.run, self.data, self.folder, self.reporter, self.stop, self.processes = (
            run, data, folder, reporter, stop, processes,
        )  # fmt: skip
        decoder = (uninitialized_decoder(run) if resumes else self._initial_decoder()).to(device)
        objective = configure_objective(objective, spec, decoder)
        last = spec.gradient_accumulation * spec.steps - 1  # no batch is larger
        self.precision = precision or processes.broadcast_from_rank0(
            lambda: measure_precision(decoder, objective, batches.batch(last))
        )
        dtype = self.precision.dtype
        self.model = model = ParallelModel(decoder, spec, dtype, processes)
        self.optimizer = build_optimizer(spec.optimizer, decoder, dtype)
        minimized = model.compiled(objective) if spec.compile else objective
        self.take_step = Stepper(
            model, minimized, self.optimizer, spec.clip, dtype, token_bytes_V, check_update=self._check_update
        )
        self.batches, self.device = batches, device
        self.context = TrainingContext(
            run=run,
            spec=spec,
            data=data,
            folder=folder,
            reporter=reporter,
            stop=stop,
            processes=processes,
            device=device,
            model=model,
            optimizer=self.optimizer,
            state=self._initial_state(),
            budget=StepBudget(spec.steps),
        )
        self.callbacks = self.context.callbacks
        self._add_callbacks(Evaluate(held_out), callbacks)

    def _add_callbacks(self, evaluate: Evaluate, own: Sequence[Callback]) -> None:
        """Add the callbacks in the order in which their hooks are called."""
        spec, processes, workload = self.context.spec, self.processes, Workload(self.run, self.batches)
        peak = peak_flops_per_s(self.device, self.precision.dtype) / (3 * workload.flops_per_token)
        guard = None if spec.guard is None else Guard(spec.guard)
        on_one_cpu = self.device.type == "cpu" and processes.count == 1
        self.checkpointing = Checkpointing(CheckpointWriter(processes, spec.parallel.shard), evaluate, guard)
        self.callbacks += [
            *([] if spec.averaging is None else [Averaging(spec.averaging, self.model.decoder)]),
            StepNotes(Steadiness(torch.get_num_threads(), on_one_cpu)),
            *([] if guard is None else [guard]),
            evaluate,
            Log(evaluate, workload, ProcessStats(processes, self.device, peak), processes.sum_number(peak)),
            Trackers(spec.trackers if processes.is_rank0 else (), self.folder, self.run),
            *own,
            self.checkpointing,
        ]
        for callback in self.callbacks:
            callback.context = self.context

    @property
    def state(self) -> TrainState:
        return self.context.state

    def _initial_decoder(self) -> Decoder:
        """The decoder with the weights that the run begins with."""
        decoder = initial_decoder(self.run, self.data)
        self._word_vectors = load_word_vectors(decoder, self.run, self.data, self.processes)
        if self._word_vectors is not None:
            self.reporter.note(word_vector_note(self.run, self._word_vectors))
        return decoder

    def _initial_state(self) -> TrainState:
        return TrainState(self.data.hash, seed=self.run.training.seed, word_vectors=self._word_vectors)

    def _check_update(self, loss: float, gradient_norm: float) -> SkipStepError | None:
        """The first callback's reason not to make an update."""
        return next(filter(None, (each.check_update(loss, gradient_norm) for each in self.callbacks)), None)

    def resume(self) -> None:
        """Continue from the newest undamaged checkpoint, if there is one; what comes after it is removed."""
        self._load_newest()
        folder, training = self.folder, self.run.training
        before = self.processes.broadcast_from_rank0(lambda: folder.configuration().training.steps)
        budget = self.processes.broadcast_from_rank0(lambda: folder.step_budget(self.run, self.state.step))
        if before != budget.steps:
            self.reporter.note(extension_note(training.schedule, training.optimizer.lr, budget.history[-1]))
        self.context.budget = budget

    def _load_newest(self) -> None:
        folder, checkpoints = self.folder, self.folder.checkpoints
        checkpoint = find_newest(checkpoints, self.model.decoder, self.reporter.note, self.processes)
        tensors = dict[str, torch.Tensor]()
        if checkpoint is not None:
            check_data(checkpoint.state.data_hash, self.data, folder.path)
            tensors, self.context.state = load(checkpoint, self.model.decoder), checkpoint.state
            self.reporter.note(f"going on from step {self.state.step} ({checkpoint.path})")
        elif checkpoint_steps(checkpoints):  # all of them are damaged
            self.model.load(self._initial_decoder().state_dict())
            self.context.state = self._initial_state()
        self.checkpointing.saved = self.state.step, self.state.callbacks_done
        self.optimizer.state.clear()
        for callback in self.callbacks:
            tensors = callback.load_tensors(tensors)
            callback.load_state_dict(self.state.callbacks.get(callback.name, {}))
        load_optimizer_tensors(self.optimizer, self.model.decoder, tensors)

        def discard_later() -> None:
            discard_after(checkpoints, self.state.step)
            self.checkpointing.pruning()()  # a process that was killed after its last checkpoint had no time for it
            logged = self.state.step if self.state.callbacks_done else self.state.step - 1
            folder.metrics.cut(logged, folder.expected_steps(logged))

        self.processes.broadcast_from_rank0(discard_later)
        for callback in self.callbacks:
            callback.on_load()

    def run_steps(self) -> None:
        """Train to the end or until a stop is requested; leave a checkpoint of the last step."""
        self.reporter.begin(self.state.step, self.context.budget.steps)
        self._run_callbacks()  # those that a stop left
        stopping = self.processes.any(self.stop.requested)
        while self.state.step < self.context.budget.steps and not stopping:
            if self._step():
                self._run_callbacks()
            stopping = self.processes.any(self.stop.requested)
        if stopping:
            self.reporter.note(f"asked to stop: saving step {self.state.step}")
        if self.state.step > 0 and self.checkpointing.saved != (self.state.step, self.state.callbacks_done):
            self.checkpointing.save()

    def _step(self) -> bool:
        """Take a step; False if it was not taken: a stop was requested, or its data is skipped."""
        context, state, start_s = self.context, self.state, time.perf_counter()
        for callback in self.callbacks:
            callback.before_step()
        number, count = state.step + 1, context.spec.gradient_accumulation
        lr = learning_rate(context.spec.schedule, context.spec.optimizer.lr, number, context.budget.of(number))
        batches = [self.batches.batch(state.data_position * count + part) for part in range(count)]
        data_wait_s = time.perf_counter() - start_s
        orthogonalizing_s = self.optimizer.orthogonalizing_s
        result = self._update(batches, lr)
        if result is None:
            return False
        result = replace(
            result,
            elapsed_s=time.perf_counter() - start_s,
            data_wait_s=data_wait_s,
            orthogonalizing_s=self.optimizer.orthogonalizing_s - orthogonalizing_s,
        )
        state.step, state.data_position, state.tokens = number, state.data_position + 1, state.tokens + result.tokens
        state.lr, state.gradient_norm = result.lr, result.gradient_norm
        state.elapsed_s += result.elapsed_s
        state.callbacks_done = False
        for callback in self.callbacks:
            callback.after_update(result)
        return True

    def _update(self, batches: list[Batch], lr: float) -> StepResult | None:
        """Update the weights; None if a stop was requested, or a callback refused the update."""
        step = self.state.step
        try:
            return self.take_step(batches, lr, self.processes.step_batches(self.stop))
        except Stopped:
            return None
        except SkipStepError as skipped:
            self._skip(skipped)
            return None
        except NonFiniteError as error:
            good = step if math.isfinite(error.loss) else step - 1
            raise diverged_error(self.folder.checkpoints, step + 1, str(error), good) from None
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler the error is gone, and with it what it held of the step.
        self.checkpointing.writer.wait()  # the others, who wait in the step, still finish writing
        saved = checkpoint_steps(self.folder.checkpoints)
        newest = f"step {saved[-1]}" if saved else "none yet"
        raise too_large(self.take_step, batches, self.context.spec.batch_size, step + 1, newest)

    def _skip(self, skipped: SkipStepError) -> None:
        """Skip the data of the refused step, and with a rewind all data since that checkpoint."""
        step, position, target = self.state.step + 1, self.state.data_position + 1, skipped.rewind_to
        before = {callback.name: callback.state_dict() for callback in self.callbacks}
        if target is not None:
            self.checkpointing.writer.wait()
            self.processes.broadcast_from_rank0(partial(discard_after, self.folder.checkpoints, target))
            self._load_newest()
            if self.state.step != target:  # it is damaged; the steps before it are repeated, and so is the spike
                return
        self.state.data_position = position
        for callback in self.callbacks:
            callback.on_skip(skipped, step, before[callback.name])
        if target is not None:
            self.checkpointing.save()

    def _run_callbacks(self) -> None:
        """Run the callbacks of this step unless they have run; a stop leaves them for later."""
        if self.state.callbacks_done:
            return
        try:
            for callback in self.callbacks:
                callback.after_step()
        except Stopped:
            return
        self.state.callbacks_done = True

    def finish(self, command: str | None) -> dict[str, Any]:
        """Write the model folder and the curves, wherever the run stands; returns the content of `run.json`."""
        self.checkpointing.writer.wait()
        summary = self._summary(command)
        with self.context.saved_weights():
            decoder = self.model.whole()

            def write() -> None:
                self.folder.write_model(decoder, self.data.tokenizer, summary)
                self.folder.draw_curves(self.run.model.name, decoder.causal)

            self.processes.broadcast_from_rank0(write)
        return summary

    def _summary(self, command: str | None) -> dict[str, Any]:
        """The content of `run.json`: how the model was made, and its figures.

        The weights are those of step `step`, or an average up to it (`averaging`). `validation` is the latest
        evaluation, `best` the one with the fewest bits per byte and its checkpoint; None before the first. `extensions`
        are those of the run.
        """
        run, state, device, hashes = self.run, self.state, self.context.device, self.folder.hashes()
        start_from, embedding_from = run.start_from, run.training.embedding_from
        figures: dict[str, Any] = {}
        for callback in self.callbacks:
            figures |= callback.summary()
        return {
            "finished": state.step == self.context.budget.steps and state.callbacks_done,
            "step": state.step,
            "steps": self.context.budget.steps,
            "tokens": state.tokens,
            "parameters": sum(parameter.numel() for parameter in self.model.decoder.parameters()),
            "seconds": state.elapsed_s,
            "command": command,
            "configuration": self.folder.configuration_checksum(),
            "started_from": start_from and {"model": str(start_from), "sha256": hashes.get(START_FROM)},
            "embedding_from": embedding_from
            and {
                "file": str(embedding_from),
                "sha256": hashes.get(EMBEDDING_FROM),
                "tokens_found": state.word_vectors,
                "tokens": run.model.vocab_size,
            },
            "seed": state.seed,
            "averaging": run.training.averaging and run.training.averaging.model_dump(),
            "extensions": self.context.budget.to_dict(),
            "spikes": None,
            **figures,
            "data": {
                "path": str(run.data),
                "manifest_sha256": state.data_hash,
                "tokenizer_hash": self.data.tokenizer.hash,
            },
            "machine": {
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
                "precision": self.precision.name,
                "precision_reason": self.precision.reason,
                "threads": torch.get_num_threads(),
                "python": platform.python_version(),
                "torch": torch.__version__,
                "linnet": __version__,
            },
        }

    def close(self) -> None:
        for callback in self.callbacks:
            callback.close()
