"""The Trainer of transformers in two processes: with the mix-in, growing layers write the same slots in both."""

import os

import pytest
import torch
from client_helpers import llama
from transformers import Trainer, TrainingArguments

import neurocoder as nc
from ranks import run_both

SIZES = {"slots": 8, "rank": 2, "top_k": 3, "max_similarity": 0.9, "consolidation": None}


class GrowingTrainer(nc.TrainerMixin, Trainer):
    """As docs/clients.md has it; rows come in order."""

    def _get_train_sampler(self, *_):
        return None


def trained(folder, batch, accumulate):
    """A model after three steps over twelve rows of as many targets, eight of them in each step."""
    model = nc.recode(llama(), "down_proj", nc.GrowingConfig(**SIZES))
    rows = torch.randint(48, (24, 8), generator=torch.Generator().manual_seed(0))
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        max_steps=3,
        max_grad_norm=0.0,
        weight_decay=0.0,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
    )
    trainer = GrowingTrainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    trainer.train()
    return model


def work(rank, folder):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    model = trained(folder, batch=2, accumulate=2)
    torch.save(model.state_dict(), folder / f"{rank}.pt")


@pytest.mark.slow
def test_two_processes_write_the_slots_of_one(tmp_path):
    run_both(work, tmp_path)
    alone = trained(tmp_path, batch=8, accumulate=1)
    assert all(int(layer.memory.written) == 3 for layer in nc.coded_layers(alone).values())
    for name, tensor in alone.state_dict().items():
        for rank in range(2):
            other = torch.load(tmp_path / f"{rank}.pt")[name]
            torch.testing.assert_close(other, tensor, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
