"""Evidence that a refused operation left a model as it was."""

import torch


class Snapshot:
    """The modules, values, modes, hooks and frozenness of a model at one moment."""

    def __init__(self, model):
        self.model = model
        self.modules = list(model.named_modules(remove_duplicate=False))
        self.types = [type(module) for _, module in self.modules]
        self.modes = [(module.training, len(module._forward_hooks)) for _, module in self.modules]
        self.state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.trainable = [(name, id(p), p.requires_grad) for name, p in model.named_parameters()]

    def assert_unchanged(self):
        now = Snapshot(self.model)
        assert [name for name, _ in now.modules] == [name for name, _ in self.modules]
        assert all(a is b for (_, a), (_, b) in zip(now.modules, self.modules, strict=True))
        assert (now.types, now.modes, now.trainable) == (self.types, self.modes, self.trainable)
        assert now.state.keys() == self.state.keys()
        for name, tensor in self.state.items():
            assert torch.equal(now.state[name], tensor), name
