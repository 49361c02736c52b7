"""The Trainer of transformers: gradient accumulation with the auxiliary loss, weight decay, resuming."""

import copy

import pytest
import torch
from client_helpers import assert_same, coded, llama, recoded, state
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

import neurocoder as nc

LR = 0.1


class ProgramTrainer(nc.TrainerMixin, Trainer):
    """As docs/clients.md has it."""


def rows(count):
    """Token sequences, each with some that are no targets: micro-batches have different numbers of targets."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(48, (count, 8), generator=generator)
    targets = [torch.where(torch.arange(8) < 8 - i % 5, row, -100) for i, row in enumerate(tokens)]
    return [{"input_ids": row, "labels": labels} for row, labels in zip(tokens, targets, strict=True)]


def in_order(trainer_type):
    """The trainer, without shuffling."""
    return type("InOrder", (trainer_type,), {"_get_train_sampler": lambda *_: None})


def train(model, folder, data, *, batch, accumulate, steps=1, trainer_type=ProgramTrainer, **options):
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        max_steps=steps,
        max_grad_norm=0.0,
        learning_rate=LR,
        weight_decay=options.pop("weight_decay", 0.0),
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy=options.pop("save_strategy", "no"),
        remove_unused_columns=options.pop("remove_unused_columns", True),
    )
    optimiser = options.pop("optimiser", torch.optim.SGD(model.parameters(), lr=LR))
    trainer = in_order(trainer_type)(
        model=model, args=arguments, train_dataset=data, optimizers=(optimiser, None), **options
    )
    trainer.train()
    return trainer


def stacked(data):
    return {name: torch.stack([row[name] for row in data]) for name in ("input_ids", "labels")}


def by_hand(model, data, a=1.0):
    """One step of SGD on one large batch: mean over its targets, and the auxiliary loss once."""
    model.train()
    loss = model(**stacked(data)).loss + a * nc.auxiliary_loss(model)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= LR * parameter.grad
    return model


def assert_close(left, right, rtol=1e-4, atol=1e-6):
    for (name, one), other in zip(state(left).items(), state(right).values(), strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("batch", "accumulate"), [(8, 1), (2, 4), (1, 8)])
def test_accumulated_micro_batches_make_the_step_of_one_large_batch(tmp_path, batch, accumulate):
    model, data = recoded(llama(), orthogonality=2.0), rows(8)
    expected = by_hand(copy.deepcopy(model), data)
    train(model, tmp_path, data, batch=batch, accumulate=accumulate)
    assert_close(model, expected)


def test_the_last_accumulation_of_an_epoch_may_be_shorter(tmp_path):
    """Six rows in micro-batches of two, four at a time: one step of three micro-batches an epoch."""
    model, data = recoded(llama(), orthogonality=2.0), rows(6)
    expected = by_hand(copy.deepcopy(model), data)
    train(model, tmp_path, data, batch=2, accumulate=4)
    assert_close(model, expected)


class WithoutLossOptions(torch.nn.Module):
    """A model of one's own, whose loss is a mean over its micro-batch: Trainer divides it by the accumulation steps."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, input_ids, labels):
        return {"loss": self.inner(input_ids=input_ids, labels=labels).loss}


def test_it_holds_for_models_whose_loss_trainer_divides(tmp_path):
    data = [{**row, "labels": row["input_ids"]} for row in rows(8)]  # the same number of targets in each
    model = recoded(llama(), orthogonality=2.0)
    expected = by_hand(copy.deepcopy(model), data)
    train(WithoutLossOptions(model), tmp_path, data, batch=2, accumulate=4)
    assert_close(model, expected)


def mean_over_all_targets(outputs, labels, num_items_in_batch):
    """A loss of one's own, divided as Trainer asks."""
    logits, targets = outputs["logits"][:, :-1], labels[:, 1:]
    total = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return total / num_items_in_batch


def test_it_holds_with_a_loss_function_of_ones_own(tmp_path):
    model, data = recoded(llama(), orthogonality=2.0), rows(8)
    expected = by_hand(copy.deepcopy(model), data)
    train(model, tmp_path, data, batch=2, accumulate=4, compute_loss_func=mean_over_all_targets)
    assert_close(model, expected)


class WithoutLabels(torch.nn.Module):
    """A model of one's own that leaves its loss to `compute_loss_func`."""

    loss_type = "ForCausalLM"

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, input_ids):
        return {"logits": self.inner(input_ids=input_ids).logits}


def test_it_holds_for_any_model_with_a_loss_function_of_ones_own(tmp_path):
    model, data = recoded(llama(), orthogonality=2.0), rows(8)
    expected = by_hand(copy.deepcopy(model), data)
    wrapped = WithoutLabels(model)
    options = {"compute_loss_func": mean_over_all_targets, "remove_unused_columns": False}
    train(wrapped, tmp_path, data, batch=2, accumulate=4, **options)
    assert_close(model, expected)


class MeanLoss(Trainer):
    """A loss of one's own, a mean over the micro-batch, that says so."""

    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, None)


class Declared(nc.TrainerMixin, MeanLoss):
    """Behind the mix-in, as docs/clients.md asks."""


def test_it_holds_for_a_trainer_that_says_how_its_loss_is_scaled(tmp_path):
    data = [{**row, "labels": row["input_ids"]} for row in rows(8)]
    model = recoded(llama(), orthogonality=2.0)
    expected = by_hand(copy.deepcopy(model), data)
    train(model, tmp_path, data, batch=2, accumulate=4, trainer_type=Declared)
    assert_close(model, expected)


class Naive(Trainer):
    """What one would write first; its auxiliary loss counts once a micro-batch."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = loss + nc.auxiliary_loss(model)
        return (loss, outputs) if return_outputs else loss


def test_without_the_division_the_auxiliary_loss_counts_once_a_micro_batch(tmp_path):
    """Why the mix-in divides: were this to change in transformers, it would be wrong."""
    model, data = recoded(llama(), orthogonality=2.0), rows(8)
    expected = by_hand(copy.deepcopy(model), data, a=4.0)
    train(model, tmp_path, data, batch=2, accumulate=4, trainer_type=Naive)
    assert_close(model, expected)


def test_evaluation_reports_the_task_loss(tmp_path):
    model, data = recoded(llama(), orthogonality=2.0), rows(4)
    trainer = train(model, tmp_path, data, batch=2, accumulate=2)
    reported = trainer.evaluate(data)["eval_loss"]
    with torch.no_grad():
        task_loss = model.eval()(**stacked(data)).loss
    assert nc.auxiliary_loss(model) > 1
    assert reported == pytest.approx(task_loss.item(), rel=1e-4)


def test_a_loop_of_ones_own_divides_both_losses(tmp_path):
    """Micro-batches with the same number of targets: the mean of means is the mean."""
    data = [{**row, "labels": row["input_ids"]} for row in rows(8)]
    model = recoded(llama(), orthogonality=2.0).train()
    expected = by_hand(copy.deepcopy(model), data)
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    k = 4
    for start in range(0, 8, 2):
        loss = model(**stacked(data[start : start + 2])).loss + nc.auxiliary_loss(model)
        (loss / k).backward()
    optimiser.step()
    assert_close(model, expected)


class Idle(Trainer):
    """Its gradients are zero: AdamW only decays."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, False, num_items_in_batch) * 0


class IdleWithMixin(nc.TrainerMixin, Idle):
    def compute_loss(self, *inputs, **options):
        return Idle.compute_loss(self, *inputs, **options)


def decayed(before, after):
    """The names of the parameters that lost a tenth; no other moved. Rate and decay are 0.1 and 1.0."""
    found = {name for name in before if not torch.equal(after[name], before[name])}
    for name in found:
        torch.testing.assert_close(after[name], 0.9 * before[name], msg=name)
    return found


OPTIMISERS = {
    "parameter_groups": (Idle, lambda model: torch.optim.AdamW(nc.parameter_groups(model, lr=LR, weight_decay=1.0))),
    "Trainer's own": (IdleWithMixin, lambda model: None),
}


@pytest.mark.parametrize("way", OPTIMISERS)
def test_slots_and_keys_are_not_decayed(tmp_path, way):
    trainer_type, make = OPTIMISERS[way]
    model = recoded(llama())
    before = state(model)
    options = {"trainer_type": trainer_type, "optimiser": make(model), "weight_decay": 1.0}
    train(model, tmp_path, rows(2), batch=2, accumulate=1, **options)
    found = decayed(before, state(model))
    assert not [name for name in found if ".memory." in name or name.endswith("bias") or "norm" in name]
    assert {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.gate_proj.R"} <= found
    assert "model.layers.0.mlp.gate_proj.controller.input_weight" in found


def test_trainer_alone_decays_slots_and_keys(tmp_path):
    """Why the mix-in is there."""
    model = recoded(llama())
    before = state(model)
    train(model, tmp_path, rows(2), batch=2, accumulate=1, trainer_type=Idle, optimiser=None, weight_decay=1.0)
    assert "model.layers.0.mlp.gate_proj.memory.U" in decayed(before, state(model))


def growing(**changes):
    config = nc.GrowingConfig(slots=4, rank=2, top_k=2, max_similarity=0.9, consolidation=None, **changes)
    return nc.recode(llama(), "down_proj", config)


def test_growing_layers_write_a_slot_a_step_however_many_micro_batches_make_it(tmp_path):
    data = [{**row, "labels": row["input_ids"]} for row in rows(24)]
    models = [growing(), growing()]
    for model, batch, accumulate in zip(models, (8, 2), (1, 4), strict=True):
        sizes = {"batch": batch, "accumulate": accumulate, "steps": 3}
        train(model, tmp_path, data, **sizes, optimiser=torch.optim.SGD(model.parameters(), lr=LR))
        assert [int(layer.memory.written) for layer in coded(model).values()] == [3, 3]
    assert_close(*models)


def test_a_second_training_of_a_trainer_grows_on(tmp_path):
    model = growing()
    trainer = train(model, tmp_path, rows(8), batch=4, accumulate=1, optimiser=None)
    assert [int(layer.memory.written) for layer in coded(model).values()] == [1, 1]
    trainer.train()
    assert [int(layer.memory.written) for layer in coded(model).values()] == [2, 2]


class PromptsLeftOut(ProgramTrainer):
    """Which tokens count, said by the user."""

    def counted_tokens(self, model, inputs):
        return inputs["labels"] != -100


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("trainer_type", [ProgramTrainer, PromptsLeftOut])
def test_pads_do_not_visit_slots_and_masked_prompts_do_not_if_the_trainer_says_so(
    tmp_path, trainer_type, checkpointing
):
    tokens = torch.randint(2, 48, (4, 8), generator=torch.Generator().manual_seed(0))
    pads, prompt = torch.arange(8) >= 5, torch.arange(8) < 2
    row = {"attention_mask": (~pads).long()}
    data = [{**row, "input_ids": one, "labels": one.masked_fill(pads | prompt, -100)} for one in tokens]
    model = growing(count="inputs")
    if checkpointing:
        model.gradient_checkpointing_enable()
    train(model, tmp_path, data, batch=2, accumulate=2, steps=2, trainer_type=trainer_type)
    each = 4 * (5 if trainer_type is ProgramTrainer else 3)
    for layer in coded(model).values():  # in the first step nothing is written yet
        assert float(layer.memory.visits.sum()) == pytest.approx(each, rel=1e-4)


def test_growing_layers_without_the_mixin_are_an_error(tmp_path):
    with pytest.raises(RuntimeError, match=r"call nc\.grow\(model, optimiser\) once, before training"):
        train(growing(), tmp_path, rows(4), batch=4, accumulate=1, trainer_type=Trainer, optimiser=None)


def test_adapters_train_beside_growing_layers_that_are_frozen(tmp_path):
    model = get_peft_model(growing(), LoraConfig(r=2, target_modules=["q_proj"]))
    before = state(model)
    train(model, tmp_path, rows(4), batch=2, accumulate=2, optimiser=None)
    moved_names = {name for name, tensor in state(model).items() if not torch.equal(tensor, before[name])}
    assert moved_names
    assert all("lora_B" in name for name in moved_names)


def test_checkpoints_of_trainer_that_would_lack_the_programs_are_announced(tmp_path):
    """For a PEFT model, Trainer saves what `save_pretrained` does."""
    model = get_peft_model(recoded(llama()), LoraConfig(r=2, target_modules=["q_proj"]))
    for layer in nc.coded_layers(model).values():
        layer.requires_grad_(True)
    with pytest.warns(UserWarning, match=r"save_pretrained of PEFT leaves out coded layers that are trained"):
        train(model, tmp_path, rows(2), batch=2, accumulate=1, optimiser=None)


def test_training_goes_on_from_a_checkpoint(tmp_path):
    """Trainer's own checkpoints hold the whole state: resumed, the rest of a training is the same."""
    data = rows(8)
    straight = recoded(llama())
    train(straight, tmp_path / "a", data, batch=2, accumulate=2, steps=4, save_strategy="steps")
    first, rest = recoded(llama()), recoded(llama(seed=5))
    trainer = train(first, tmp_path / "b", data, batch=2, accumulate=2, steps=2)
    trainer._save_checkpoint(first, None)
    folder = next((tmp_path / "b").glob("checkpoint-*"))
    arguments = copy.deepcopy(trainer.args)
    arguments.max_steps = 4
    optimiser = torch.optim.SGD(rest.parameters(), lr=LR)
    later = in_order(ProgramTrainer)(model=rest, args=arguments, train_dataset=data, optimizers=(optimiser, None))
    later.train(resume_from_checkpoint=str(folder))
    assert len(coded(rest)) == 2
    assert_same(state(rest), state(straight))
