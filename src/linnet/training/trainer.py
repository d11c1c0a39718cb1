"""The training loop.

    while step < steps and nobody asks to stop:
        take a step
        if due: evaluate, write figures, save a checkpoint

A batch is computed from the seed and its number, the learning rate from the step, the first weights from the seed. So
weights, moments and a few counters are the whole state: a run that is stopped and resumed ends as if it had not been.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from linnet.core.errors import is_out_of_memory
from linnet.data.pairs import PairBatches
from linnet.data.shards import TokenData
from linnet.evaluation.likelihood import Evaluation
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.training.callbacks.guard import GuardState, SpikeError, back, goes_back, judge, skip
from linnet.training.callbacks.steadiness import Steadiness
from linnet.training.callbacks.trackers import Trackers
from linnet.training.checkpoint import checkpoint_steps, discard_after, prune
from linnet.training.data import check_data, manifest_hash, training_batches
from linnet.training.distributed import Batch, Processes
from linnet.training.divergence import DivergedError, diverged_error
from linnet.training.held_out import HeldOut
from linnet.training.initialization import initial_decoder, load_word_vectors, uninitialized_decoder, word_vector_note
from linnet.training.machine import check_memory, peak_flops_per_s
from linnet.training.objective import Objective, configure_objective
from linnet.training.optimizers.averaging import Averaging
from linnet.training.optimizers.optimizer import build_optimizer, load_optimizer_tensors, optimizer_tensors
from linnet.training.optimizers.schedule import learning_rate
from linnet.training.out_of_memory import too_large
from linnet.training.parallel import parallelize, shared_by_these
from linnet.training.precision import configured_precision, measure_precision, too_short_to_measure
from linnet.training.processes.shares import Shares
from linnet.training.progress.line import line_of, progress_of
from linnet.training.progress.pace import Pace
from linnet.training.prolonged import StepBudget
from linnet.training.prolonged import told as prolonged
from linnet.training.record.summary import summarize
from linnet.training.reporter import Reporter
from linnet.training.run_folder import RunFolder
from linnet.training.spec import RunSpec
from linnet.training.step import NonFiniteError, Stepper, StepResult
from linnet.training.stop import Stopped, StopRequest
from linnet.training.train_state import Meter, TrainState

CURVES_PAUSE_S = 30.0
"""While a run goes on, its picture is drawn with a checkpoint, but not more often than this: it takes a while."""


class Trainer:
    """A run in memory."""

    def __init__(
        self,
        run: RunSpec,
        data: TokenData,
        folder: RunFolder,
        objective: Objective,
        reporter: Reporter,
        stop: StopRequest,
        processes: Processes,
    ) -> None:
        self.run, self.data, self.folder, self.reporter, self.stop = run, data, folder, reporter, stop
        self.processes = processes
        begun = bool(checkpoint_steps(folder.checkpoints))
        self.spec = spec = shared_by_these(run.training, processes, reporter.note) if begun else run.training
        assert spec.steps is not None and spec.context_length is not None, "an unresolved run"
        self.steps, self.context_length = spec.steps, spec.context_length
        processes.check_batch(spec.batch_size)
        for _, smaller in spec.growth.batch_size:
            processes.check_batch(smaller, "training.growth.batch_size")
        self.device = processes.device(spec.device)
        stated = configured_precision(spec, self.device) or folder.precision() or too_short_to_measure(run)
        as_computed = run.model_copy(update={"training": spec})
        check_memory(as_computed, self.device, torch.bfloat16 if stated is None else stated.dtype, processes)
        self.growth = run.growth
        self.batches = training_batches(data, run)
        token_bytes_V = torch.from_numpy(data.tokenizer.token_bytes()).to(self.device)
        self.held_out = HeldOut(data, spec, token_bytes_V)
        self.embedded: int | None = None
        self.decoder = (uninitialized_decoder(run) if begun else self._initial_decoder()).to(self.device)
        objective = configure_objective(objective, spec, self.decoder, data.tokenizer.end_id)
        last = spec.gradient_accumulation * self.steps - 1  # a batch as large as any
        self.precision = stated or processes.broadcast_from_rank0(
            lambda: measure_precision(self.decoder, objective, self.batches.batch(last))
        )
        dtype = self.precision.dtype
        self.parallel = parallelize(self.decoder, spec, dtype, processes)
        minimized = self.parallel.compiled(objective) if spec.compile else objective
        self.optimizer = build_optimizer(spec.optimizer, self.decoder, dtype)
        self.averaging = Averaging(spec.averaging, self.decoder)
        self.take_step = Stepper(self.parallel, minimized, self.optimizer, spec.clip, dtype, token_bytes_V, self._judge)
        self.cost = model_cost(run.model)
        flops_per_token = 3 * self._flops_per_token(self.context_length)
        own_peak = peak_flops_per_s(self.device, dtype) / flops_per_token
        self.peak_tokens_per_s = processes.sum_of(own_peak)
        self.shares = Shares(processes, self.device, own_peak)
        self.standing = self._first_standing()
        self.trackers = Trackers(spec.trackers if processes.first else (), folder, run)
        self.steadiness = Steadiness(torch.get_num_threads(), self.device.type == "cpu" and processes.count == 1)
        self.lengths = StepBudget(self.steps)
        self.saved: tuple[int, bool] | None = None
        self.pace = Pace(0.0)
        self.curves_due_s = time.monotonic() + CURVES_PAUSE_S

    def keep_precision(self) -> None:
        """Say which precision was measured to be the faster, and keep it with the run."""
        if self.precision.measured and self.folder.precision() is None:
            self.reporter.note(f"precision {self.precision}")
            self.folder.keep_precision(self.precision)

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one; what lies after it is removed."""
        self._load_newest()
        self.lengths = self.processes.broadcast_from_rank0(self._lengths)

    def _lengths(self) -> StepBudget:
        """How many steps the run has and had."""
        before = self.folder.configuration().training.steps
        lengths = self.folder.lengths(self.run, self.standing.step)
        if before != self.steps:
            self.reporter.note(prolonged(self.spec, lengths.history))
        return lengths

    def _initial_decoder(self) -> Decoder:
        """With the weights that the run begins with."""
        decoder = initial_decoder(self.run, self.data)
        self.embedded = load_word_vectors(decoder, self.run, self.data, self.processes)
        if self.embedded is not None:
            self.reporter.note(word_vector_note(self.run, self.embedded))
        return decoder

    def _first_standing(self) -> TrainState:
        guard = None if self.spec.guard is None else GuardState()
        return TrainState(manifest_hash(self.data), guard=guard, embedded=self.embedded)

    def _load_newest(self) -> None:
        checkpoint = self.parallel.newest(self.folder.checkpoints, self.reporter.note)
        if checkpoint is not None:
            standing = checkpoint.standing
            check_data(standing.data_hash, self.data, self.folder.path)
            moments = self.averaging.resume(self.parallel.load(checkpoint))
            load_optimizer_tensors(self.optimizer, self.decoder, moments)
            self.standing, self.saved = standing, (standing.step, standing.closed)
            self.reporter.note(f"going on from step {standing.step} ({checkpoint.path})")
        elif checkpoint_steps(self.folder.checkpoints):  # none of them is whole
            self.parallel.take(self._initial_decoder().state_dict())
            self.optimizer.state.clear()
            self.averaging.resume({})
            self.standing = self._first_standing()
        self.processes.broadcast_from_rank0(self._discard_later)

    def _discard_later(self) -> None:
        step = self.standing.step
        discard_after(self.folder.checkpoints, step)
        self._pruning()()  # what a process that was killed after its last checkpoint had no time for
        logged = step if self.standing.closed else step - 1
        self.folder.metrics.cut(logged, self.folder.due(logged))
        self.trackers.begin(logged)

    def run_steps(self) -> None:
        """Train to the end, or until a stop is requested; leave a checkpoint of the last step made."""
        self.pace = Pace(self.standing.seconds / max(1, self.standing.tokens))
        self.reporter.begin(self.standing.step, self.steps)
        self._close_step()
        stopping = self.processes.any(self.stop.requested)
        while self.standing.step < self.steps and not stopping:
            self._step()
            self._close_step()
            stopping = self.processes.any(self.stop.requested)
        if stopping:
            self.reporter.note(f"asked to stop: saving step {self.standing.step}")
        if self.standing.step > 0 and self.saved != (self.standing.step, self.standing.closed):
            self._save()

    def _step(self) -> None:
        """Take one step and count it."""
        start_s, orthogonalizing_s = time.perf_counter(), self.optimizer.orthogonalizing_s
        number, place, gradient_accumulation = self.standing.step, self.standing.place, self.spec.gradient_accumulation
        lr = learning_rate(self.spec.schedule, self.spec.optimizer.lr, number + 1, self.lengths.of(number + 1))
        if self.growth.stage(number + 1).begins == number > 0:
            self.reporter.note(f"step {number + 1}: {self.growth.stage(number + 1).sizes} from here on")
            self.steadiness.begin_anew()
        batches = [self.batches.batch(place * gradient_accumulation + part) for part in range(gradient_accumulation)]
        waited_s = time.perf_counter() - start_s
        result = self._taken(batches, lr)
        if result is None:
            return
        seconds = time.perf_counter() - start_s
        self.shares.add(result, seconds)
        self.standing.add(result, seconds, self.optimizer.orthogonalizing_s - orthogonalizing_s, waited_s)
        self.averaging.update(self.standing.step, self.lengths.of(self.standing.step))
        self.pace.add(seconds, result.tokens)
        for said in self.steadiness.add(seconds, waited_s):
            self.reporter.note(said)
        self.reporter.step(progress_of(self))

    def _taken(self, batches: list[Batch], lr: float) -> StepResult | None:
        """The step that was taken; None where it was not: asked to stop, or left out."""
        number = self.standing.step
        try:
            return self.take_step(batches, lr, self.processes.within_step(self.stop))
        except Stopped:
            return None
        except SpikeError as spike:
            self._leave_out(spike)
            return None
        except NonFiniteError as error:
            good = number if math.isfinite(error.loss) else number - 1
            raise diverged_error(self.folder.checkpoints, number + 1, str(error), good) from None
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Here, where the error is gone, nothing holds what the step held.
        self.parallel.settle()  # the others, who wait in the step, still write what they began to
        raise too_large(self.take_step, batches, self.spec.batch_size, number + 1, self._newest_saved())

    def _judge(self, loss: float, gradient_norm: float) -> SpikeError | None:
        """Whether the update of a batch is not to be made."""
        seen = self.standing.guard
        return None if seen is None or self.spec.guard is None else judge(self.spec.guard, seen, loss, gradient_norm)

    def _leave_out(self, spike: SpikeError) -> None:
        """Go on without the batch of a spike, or without all data since the last checkpoint."""
        seen, step = self.standing.guard, self.standing.step
        assert seen is not None and self.spec.guard is not None, "a spike that nobody judged"
        if not goes_back(self.spec.guard, seen):
            self.reporter.note(skip(seen, step + 1, spike))
            return
        assert seen.checkpoint is not None, "nothing to go back to"
        self.parallel.settle()
        self.processes.broadcast_from_rank0(partial(discard_after, self.folder.checkpoints, seen.checkpoint))
        self._load_newest()
        loaded = self.standing.guard
        assert loaded is not None, "a checkpoint of this run"
        if self.standing.step == seen.checkpoint:  # else it is damaged: it is made again, and then the spike is met
            self.reporter.note(back(seen, loaded, step + 1, spike))
            self._save()

    def _newest_saved(self) -> str:
        """What is said of the newest checkpoint."""
        saved = checkpoint_steps(self.folder.checkpoints)
        return f"step {saved[-1]}" if saved else "none yet"

    def _close_step(self) -> None:
        """Do what is due after this step, unless it is done: evaluate, write figures, save."""
        standing = self.standing
        if standing.closed:
            return
        last, best = self.lengths.ends(standing.step), False
        evaluation_is_due = last or standing.step % self.spec.evaluate.every == 0
        if evaluation_is_due:
            try:
                best = standing.add_evaluation(self._evaluate())
            except Stopped:
                return
        if evaluation_is_due or standing.step % self.spec.log.every == 0:
            self._write_line(evaluation_is_due)
        standing.closed = True
        if last or best or standing.step % self.spec.checkpoint.every == 0:
            if standing.guard is not None:
                standing.guard.checkpoint = standing.step
            self._save()

    def _evaluate(self) -> Evaluation:
        """The fixed validation set; `Stopped` where a stop is requested meanwhile."""
        with self.averaging.applied():
            part = partial(self.processes.until_requested, self.stop)
            found = self.held_out.measure(self.parallel.whole(), self.processes, part)
        if not math.isfinite(found.causal.nats):
            raise self._broken_down_after(f"validation loss {found.causal.nats:g}")
        return found

    def _write_line(self, evaluated: bool) -> None:
        """Write a line of figures, and begin the next."""
        line = line_of(self, evaluated)
        if self.processes.first:
            self.folder.metrics.append(line)
            self.trackers.line(line)
        self.standing.meter = Meter()
        self.reporter.line(line)

    def _save(self) -> None:
        """Write a checkpoint of this step, then remove those that are no longer kept."""
        standing = self.standing
        if not math.isfinite(self.parallel.norm(list(self.decoder.parameters())).item()):
            raise self._broken_down_after("the norm of the weights is not finite")
        self.processes.broadcast_from_rank0(self.folder.metrics.push_to_disk)
        with self.averaging.applied() as trained:
            moments = optimizer_tensors(self.optimizer, self.decoder) | trained
            self.parallel.save(self.folder.checkpoints, moments, self.data.tokenizer, standing, self._pruning())
        self.saved = (standing.step, standing.closed)
        if self.processes.first and time.monotonic() > self.curves_due_s:
            self.folder.draw_curves(self.run.model.name, self.decoder.causal)
            self.curves_due_s = time.monotonic() + CURVES_PAUSE_S

    def _pruning(self) -> Callable[[], None]:
        """The removal of checkpoints that are no longer kept, as the run stands now."""
        standing = self.standing
        guarded = None if standing.guard is None else standing.guard.checkpoint
        return partial(prune, self.folder.checkpoints, self.spec.checkpoint.keep, standing.best_step, guarded)

    def work_of_token(self, first: int, last: int) -> float:
        """FLOPs of a token of the steps after `first`, to `last`, over those of one of the longest windows."""
        return self.growth.mean(self._flops_per_token, first, last) / self._flops_per_token(self.context_length)

    def tokens_ahead(self) -> int:
        """Tokens that the steps to come predict; of pairs about so many."""
        if isinstance(self.batches, PairBatches):
            of_step = self.spec.gradient_accumulation * self.spec.batch_size * self.batches.mean_lengths[1]
            return round((self.steps - self.standing.step) * of_step)
        return self.growth.tokens(self.standing.step, self.steps)

    def _flops_per_token(self, length: int) -> float:
        """FLOPs of a forward pass for each token that is predicted, in windows of a length; of pairs, of a mean one."""
        if not isinstance(self.batches, PairBatches):
            return self.cost.flops_per_token(length, with_head=True)
        inputs, targets = (max(1, round(mean)) for mean in self.batches.mean_lengths)
        if self.decoder.encoder is not None:
            return self.cost.flops(targets, with_head=True, inputs=inputs) / targets
        return self.cost.flops(inputs + targets, with_head=True) / targets

    def _broken_down_after(self, what: str) -> DivergedError:
        """The update of this step made something that is not finite."""
        step, meter = self.standing.step, self.standing.meter
        measured = f"learning rate {meter.lr:g}, gradient norm {meter.gradient_norm:g}"
        return diverged_error(self.folder.checkpoints, step, f"{what}, {measured}", step - 1)

    def finish(self, command: str | None) -> dict[str, Any]:
        """Write the model folder and the picture, wherever the run stands; what `run.json` says."""
        self.parallel.settle()
        summary = summarize(self, command) | self.shares.in_all()
        with self.averaging.applied():
            decoder = self.parallel.whole()
            self.processes.broadcast_from_rank0(partial(self._write, decoder, summary))
        return summary

    def _write(self, decoder: Decoder, summary: dict[str, Any]) -> None:
        self.folder.draw_curves(self.run.model.name, decoder.causal)
        self.folder.write_model(decoder, self.data.tokenizer, summary)
