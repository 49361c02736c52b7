"""What data may be: every form of the same inputs makes the same calls."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from neurocoder.inspect import calls
from neurocoder.inspect.data import require_data, require_fit

X, Z = torch.randn(9, 4), torch.arange(9)
PAIRS = TensorDataset(X, Z)


class Stream(IterableDataset):
    """Inputs one by one; how many were read."""

    read = 0

    def __iter__(self):
        for pair in PAIRS:
            self.read += 1
            yield pair


@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        ((X, Z), [9]),
        ((X.numpy(), Z.numpy()), [9]),
        ([(X[:4], Z[:4]), [X[4:], Z[4:]]], [4, 5]),
        ((pair for pair in [(X[:4], Z[:4]), (X[4:].numpy(), Z[4:])]), [4, 5]),
        (DataLoader(PAIRS, batch_size=4), [4, 4, 1]),
        (PAIRS, [9]),
        (Stream(), [9]),
    ],
)
def test_all_forms_make_the_same_calls(data, sizes):
    found = list(calls(data))
    assert [len(call.args[0]) for call in found] == sizes
    assert all(call.kwargs == {} for call in found)
    for place, expected in enumerate((X, Z)):
        assert torch.equal(torch.cat([call.args[place] for call in found]), expected)


def test_arguments_by_name_and_single_ones():
    (named,) = calls({"x": X.numpy(), "scale": 2.0})
    assert (named.args, set(named.kwargs), named.kwargs["scale"]) == ((), {"x", "scale"}, 2.0)
    assert torch.equal(named.kwargs["x"], X)
    assert [call.args[0].shape for call in calls([X[:2], X[2:5].numpy()])] == [(2, 4), (3, 4)]
    (nested,) = calls(((X, Z), None))
    assert nested.args[0][0] is X
    assert nested.args[1] is None


def test_a_data_set_makes_calls_of_64_and_is_read_no_further_than_asked():
    assert [len(call.args[0]) for call in calls(TensorDataset(torch.zeros(150, 2)))] == [64, 64, 22]
    stream = Stream()
    assert [len(call.args[0]) for call in calls(stream, limit=5)] == [5]
    assert stream.read == 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "data must be a tensor, a tuple of arguments, .* or an iterable of these, got 3"),
        (None, "data must be a tensor, .*, got None"),
        (nn.Linear(2, 2), r"data must be a tensor, .*, got Linear\("),
        ("word", "data must be a tensor, .*, got 'word'; write it so"),
        (["word"], r"data must be a tensor, .*, got a batch that is str: wrap it as \(batch,\)"),
        (np.array(["a", "b"]), "got a batch that is ndarray"),
    ],
)
def test_what_data_may_not_be_is_named(data, message):
    with pytest.raises(ValueError, match=message):
        list(require_data(data, "; write it so") or calls(data))


def test_arguments_must_be_those_of_the_forward():
    (fits,), (wrong,) = calls(X), calls((X, Z))
    require_fit(nn.Linear(4, 2), fits)
    with pytest.raises(ValueError, match=r"data must be what the model's forward takes: too many positional arguments"):
        require_fit(nn.Linear(4, 2), wrong)
