"""Models under `fully_shard` (FSDP2): what two processes compute, save and load together."""

import traceback

import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import randomised, small
from ranks import run_both


def plain():
    """No size is a multiple of the number of processes."""
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3))


def build():
    """The same model in every process."""
    torch.manual_seed(1)
    return randomised(nc.recode(plain(), {"0": small(), "3": small(slots=5)}), 0.5)


def shard(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model[0], mesh=mesh)  # the last layer belongs to the model's own group
    return fully_shard(model, mesh=mesh)


def inputs():
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(2))


def saving_gathers(folder):
    whole, model = build(), shard(build())
    torch.testing.assert_close(model(inputs()), whole(inputs()))
    nc.save(model, folder / "checkpoint")
    loaded = nc.load(folder / "checkpoint", plain()).state_dict()
    for name, tensor in whole.state_dict().items():
        assert torch.equal(loaded[name], tensor), name


def loading_shards(folder):
    whole, model = build(), shard(randomised(build(), 0.1))
    assert (model(inputs()) - whole(inputs())).abs().max() > 0.01
    nc.load(folder / "checkpoint", model)
    assert type(model[0].R).__name__ == "DTensor"
    torch.testing.assert_close(model(inputs()), whole(inputs()))


def surgery_on_shards_is_refused(folder):
    sharded, coded = shard(plain()), shard(build())
    for used in (False, True):  # after a forward, the parameters that the model's own group holds are whole
        for name in ("0", "3"):
            with pytest.raises(
                nc.CheckpointError, match=r"layer '0' cannot be recoded as it was saved: .*after nc\.load"
            ):
                nc.load(folder / "checkpoint", sharded)
            with pytest.raises(ValueError, match=rf"cannot recode '{name}': its parameters are sharded by fully_shard"):
                nc.recode(sharded, name, small())
            with pytest.raises(
                ValueError, match=rf"cannot restore '{name}': its parameters are sharded by fully_shard"
            ):
                nc.restore(coded, name)
        if not used:
            sharded(inputs()), coded(inputs())
    with pytest.raises(ValueError, match=r"no layer that can be recoded\. 0, 2, 3: its parameters are sharded"):
        nc.recode(sharded, "*", small())


def surgery_inside_ddp_is_refused(folder):
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(plain())
    with pytest.raises(
        ValueError, match=r"cannot recode 'module\.0': .*: give nc\.recode the inner model, wrap it again"
    ):
        nc.recode(model, "module.0", small())
    with pytest.raises(ValueError, match=r"cannot restore 'module\.0': .*: give nc\.restore the inner model"):
        nc.restore(DistributedDataParallel(build()))
    nc.recode(model.module, "0", small())


def ddp_is_saved_and_loaded_as_its_inner_model(folder):
    """Both processes save into one folder at a time, as each would by itself."""
    from torch.nn.parallel import DistributedDataParallel

    whole = build()
    nc.save(DistributedDataParallel(build()), folder / "ddp")
    torch.distributed.barrier()
    assert sorted(file.name for file in (folder / "ddp").iterdir()) == ["neurocoder.json", "neurocoder.safetensors"]
    for other in (plain(), DistributedDataParallel(randomised(build()))):
        loaded = nc.load(folder / "ddp", other)
        torch.testing.assert_close(loaded(inputs()), whole(inputs()))
    with pytest.raises(nc.CheckpointError, match=r"layer '0' cannot be recoded as .*: give nc\.load the inner model"):
        nc.load(folder / "ddp", DistributedDataParallel(plain()))


def a_failing_save_fails_in_every_process(folder):
    (folder / "file").touch()
    with pytest.raises(nc.CheckpointError, match=r"path must be a folder, but .*file is a file"):
        nc.save(shard(build()), folder / "file")


def auxiliary_loss_of_the_whole(folder):
    whole, model = build(), shard(build())
    loss, expected = nc.auxiliary_loss(model), nc.auxiliary_loss(whole)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    for layer in (0, 3):
        for name in ("U", "V"):
            gradient = getattr(model[layer].memory, name).grad.full_tensor()
            torch.testing.assert_close(gradient, getattr(whole[layer].memory, name).grad)


def gradients_of_a_training_step(folder):
    """Both processes have the same batch, so that the mean of their gradients is one model's."""
    whole, model = build(), shard(build())
    for one in (whole, model):
        (one(inputs()).square().mean() + nc.auxiliary_loss(one)).backward()
    found = {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}
    torch.testing.assert_close(found, {name: parameter.grad for name, parameter in whole.named_parameters()})


CHECKS = [
    saving_gathers,
    loading_shards,
    surgery_on_shards_is_refused,
    surgery_inside_ddp_is_refused,
    ddp_is_saved_and_loaded_as_its_inner_model,
    a_failing_save_fails_in_every_process,
    auxiliary_loss_of_the_whole,
    gradients_of_a_training_step,
]


def work(rank, folder):
    """All checks in order; what went wrong goes into a file each."""
    for check in CHECKS:
        try:
            check(folder)
            complaint = ""
        except BaseException:
            complaint = traceback.format_exc()
        (folder / f"{check.__name__}-{rank}").write_text(complaint)
        torch.distributed.barrier()


@pytest.mark.slow
def test_what_two_processes_do_together(tmp_path):
    run_both(work, tmp_path)
    outcomes = [(tmp_path / f"{check.__name__}-{rank}").read_text() for check in CHECKS for rank in range(2)]
    assert not any(outcomes), "\n".join(outcomes)
