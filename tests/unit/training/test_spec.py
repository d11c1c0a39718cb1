import pytest
import yaml

from linnet.core.errors import UserError
from linnet.model.spec import ModelSpec
from linnet.training.spec import RunSpec, read_run

MODEL, DATA = "ted-tinystories", "stories"


def _read(*assignments, **sections):
    return read_run(model=MODEL, data=DATA, assignments=list(assignments), **sections)


def test_defaults_are_filled_in():
    run = _read("model.context_length=128").resolved().training
    assert (run.steps, run.tokens, run.context_length, run.schedule.warmup_steps) == (1000, None, 128, 100)


@pytest.mark.parametrize(("tokens", "steps"), [("8192", 2), ("8193", 3), ("1", 1), ("1e6", 245)])
def test_a_length_in_tokens_is_rounded_up_to_steps(tokens, steps):
    sizes = ("training.batch_size=8", "training.gradient_accumulation=2", "training.context_length=256")
    assert _read(f"training.tokens={tokens}", *sizes).steps == steps


def test_file_options_and_assignments_win_in_this_order(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("model: gpt2-124m\ndata: here\ntraining: {steps: 7, seed: 3}\n")
    run = read_run(config)
    assert (run.model.name, str(run.data), run.training.steps) == ("gpt2-124m", "here", 7)
    run = read_run(config, model=MODEL, data="there", assignments=["training.steps=9"])
    assert (run.model.name, str(run.data), run.training.steps, run.training.seed) == (MODEL, "there", 9, 3)


def test_the_model_may_be_written_out_in_the_file(tmp_path):
    model = {**_read().model.model_dump(), "name": "mine"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"model": model, "data": "here"}))
    assert read_run(tmp_path / "run.yaml", assignments=["model.blocks.0.repeat=2"]).model.layers == 2


def test_the_resolved_configuration_reads_back_as_itself():
    run = _read("training.tokens=100000", "training.clip.by=value").resolved()
    assert RunSpec.parse(yaml.safe_load(yaml.safe_dump(run.to_dict())), "again").resolved() == run


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ("training.steps=-5", ["training.steps", "-5", "greater than 0"]),
        ("training.foo=1", ["`set` training.foo: unknown key (value 1); accepted: recipe, batch_size"]),
        ("training.trackers=mlflow", ["training.trackers: 'mlflow': must be a list of tensorboard and wandb"]),
        ("training.trackers=[mlflow]", ["training.trackers[0]", "'mlflow'", "'tensorboard' or 'wandb'"]),
        ("training.guard=true", ["training.guard: True: must be a mapping, {} at the least"]),
        ("training.stepz=5", ["training.stepz", "unknown key"]),
        ("training.optimizer.lr=fast", ["training.optimizer.lr", "'fast'", "number"]),
        ("training.optimizer.betas=[0.9, 1.5]", ["training.optimizer.betas[1]", "1.5", "less than 1"]),
        ("training.schedule.kind=step", ["training.schedule.kind", "'step'", "'cosine'", "'cosine_squared'"]),
        ("training.schedule.final_fraction=2", ["training.schedule.final_fraction", "2", "less than or equal to 1"]),
        ("training.optimizer.weight_decay_on=none", ["weight_decay_on", "'none'", "'matrices' or 'all'"]),
        ("training.optimizer.kind=sgd", ["training.optimizer.kind", "'sgd'", "'adamw' or 'muon'"]),
        ("training.optimizer.muon.every=2", ["training.optimizer", "muon: needs kind: muon"]),
        (
            "training.schedule.decay_share=0.5",
            ["training.schedule", "decay_share: 0.5: needs kind: stable"],
        ),
        ("training.z_loss=-1", ["training.z_loss", "-1", "greater than or equal to 0"]),
        ("training.averaging.share=0.5", ["training.averaging", "share: 0.5: needs kind: mean"]),
        ("training.averaging.kind=best", ["training.averaging.kind", "'best'", "'ema' or 'mean'"]),
        ("training.clip.by=size", ["training.clip.by", "'size'", "'norm', 'value' or 'none'"]),
        ("training.precision=float8", ["training.precision", "'float8'", "'auto', 'float32' or 'bfloat16'"]),
        ("training.evaluate.calibrate_on=me", ["training.evaluate.calibrate_on", "'me'", "'train' or 'empty'"]),
        ("training.seed=-1", ["training.seed", "-1"]),
        ("trainng.steps=5", ["trainng", "unknown key"]),
        ("model.d_modell=5", ["d_modell", "unknown key"]),
        ("training.steps", ["set: training.steps", "section.key=value"]),
        ("training.steps=abc", ["`set` training.steps: 'abc': must be a whole number"]),
        ("model.blocks.0.repeat=1.5", ["`set` model.blocks[0].repeat: 1.5: must be a whole number"]),
        ("model=tiny-ted", ["`set` model: 'tiny-ted': expected its fields one by one"]),
    ],
)
def test_a_wrong_field_is_one_line_with_field_value_and_what_is_accepted(assignment, parts):
    with pytest.raises(UserError) as error:
        _read(assignment)
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("assignments", "part"),
    [
        (["training.context_length=4096"], "training.context_length: 4096: must be at most the model's, 2048"),
        (["training.steps=5", "training.schedule.warmup_steps=6"], "training.schedule.warmup_steps: 6"),
    ],
)
def test_inconsistent_lengths_are_refused(assignments, part):
    with pytest.raises(UserError, match=part):
        _read(*assignments).resolved()


def test_steps_and_tokens_exclude_each_other():
    with pytest.raises(UserError, match=r"steps: 5 and tokens: 10: give one of the two"):
        _read("training.steps=5", "training.tokens=10")


@pytest.mark.parametrize(("share", "warmup_steps"), [("0.3", 72), ("0", 0), ("1", 240)])
def test_a_share_of_the_steps_is_the_same_share_of_any_number(share, warmup_steps):
    run = _read("training.steps=240", f"training.schedule.warmup_share={share}").resolved()
    assert (run.training.schedule.warmup_steps, run.training.schedule.warmup_share) == (warmup_steps, None)
    written = _read("training.steps=240", f"training.schedule.warmup_steps={warmup_steps}").resolved()
    assert written == run, "the same run, however its warm-up is said"


def test_warm_up_in_steps_and_as_a_share_exclude_each_other():
    with pytest.raises(UserError, match=r"warmup_steps: 5 and warmup_share: 0.1: give one of the two"):
        _read("training.schedule.warmup_steps=5", "training.schedule.warmup_share=0.1")


def test_a_missing_section_is_named():
    with pytest.raises(UserError, match="model: missing; give `model`"):
        read_run(data=DATA)
    with pytest.raises(UserError, match="data: missing; give `data`"):
        read_run(model=MODEL)


def test_a_file_that_is_not_a_mapping_is_refused(tmp_path):
    (tmp_path / "run.yaml").write_text("- model\n")
    with pytest.raises(UserError, match=r"run.yaml: expected a mapping .*, found list"):
        read_run(tmp_path / "run.yaml")


def test_recipe_null_is_no_recipe():
    assert _read("training.recipe=null") == _read()


def test_a_description_of_the_model_may_be_plain_data():
    plain = {"vocab_size": 8, "d_model": 4, "context_length": 8, "blocks": [{"mixer": {"kind": "ted"}}]}
    run = read_run(model=plain, data=DATA, assignments=["model.d_model=8"])
    assert run.model == ModelSpec.parse({**plain, "d_model": 8}, "test") and plain["d_model"] == 4
    with pytest.raises(UserError, match=r"^run: model: d_mode: unknown key \(value 4\); did you mean d_model\?$"):
        read_run(model={**plain, "d_mode": 4}, data=DATA)
