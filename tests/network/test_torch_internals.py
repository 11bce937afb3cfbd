"""The functions of PyTorch outside its documented API, each against the documented one.

A failure here means that the installed PyTorch differs from the tested ones: see
`axml_ray/network/fast/torch_internals.py`.
"""

import pytest
import torch

from axml_ray.network.fast.torch_internals import (
    adam_,
    lstm_layer,
    mark_coalesced_,
    masked_scale,
    relu_backward_,
    scale_,
    softmax_backward,
)

formats = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])


@formats
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_softmax_backward(dtype, dim):
    scores = torch.randn(3, 7, 5).to(dtype)
    scores[1, 4:, 2] = -torch.inf  # padding
    scores.requires_grad_()
    weights, gradient = scores.softmax(dim), torch.randn(3, 7, 5).to(dtype)
    weights.backward(gradient)
    found = softmax_backward(gradient, weights.detach(), dim)
    assert found.dtype == dtype and torch.equal(found, scores.grad)


@formats
def test_relu_backward_writes_in_place(dtype):
    x = torch.randn(4, 6).to(dtype).requires_grad_()
    output, gradient = x.relu(), torch.randn(4, 6).to(dtype)
    output.backward(gradient)
    own = gradient.clone()
    assert relu_backward_(own, output.detach()) is own
    assert torch.equal(own, x.grad) and (own == 0).any()


def test_scale_writes_in_place():
    tensors = [torch.ones(2, 3), torch.full((4,), 2.0), torch.zeros(0, 2)]
    scale_(tensors, torch.tensor(0.5))
    assert tensors[0].eq(0.5).all() and tensors[1].eq(1).all()


@pytest.mark.parametrize("options", [{"lr": 1e-3}, {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3}])
def test_adam(options):
    given = {"betas": (0.9, 0.999), "eps": 1e-8, **options}
    torch.manual_seed(0)
    theirs = [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(4))]
    ours = [one.detach().clone() for one in theirs]
    first, second = ([torch.zeros_like(one) for one in ours] for _ in range(2))
    steps = [torch.zeros(()) for _ in ours]
    optimizer = torch.optim.Adam(theirs, **given)
    for _ in range(8):
        gradients = [torch.randn_like(one) for one in ours]
        adam_(ours, gradients, first, second, steps, **given)
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-5, atol=1e-7)
    assert [step.item() for step in steps] == [8, 8]


def test_mark_coalesced():
    values = torch.randn(2, 3)
    gradient = torch.sparse_coo_tensor(torch.tensor([[1, 4]]), values, (6, 3), check_invariants=False)
    assert not gradient.is_coalesced()
    mark_coalesced_(gradient)
    assert gradient.is_coalesced()
    same = gradient.coalesce()
    assert same.values().data_ptr() == values.data_ptr()  # nothing is copied
    # `values` leads to the gradient itself, so that clipping changes it
    same.values().mul_(2)
    assert torch.equal(gradient.to_dense()[4], values[1])


@formats
def test_masked_scale(dtype):
    values, kept = torch.randn(5, 3).to(dtype), torch.rand(5, 3) < 0.5
    torch.testing.assert_close(masked_scale(values, kept, 1.25), values * kept * 1.25)


@pytest.mark.parametrize("directions", [1, 2])
def test_lstm_layer(directions):
    lstm = torch.nn.LSTM(6, 5, batch_first=True, bidirectional=directions == 2)
    words, state = torch.randn(3, 7, 6), (torch.randn(directions, 3, 5), torch.randn(directions, 3, 5))
    found = lstm_layer(words, state, list(lstm.parameters()), True)
    torch.testing.assert_close(found, lstm(words, state)[0])


def test_adam_divides_gradients():
    torch.manual_seed(0)
    given = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8}
    results = []
    for times, divisor in ((1.0, None), (4.0, torch.tensor(4.0))):
        weight, first, second, step = torch.ones(3), torch.zeros(3), torch.zeros(3), torch.zeros(())
        for gradient in (torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, 0.1, 0.0])):
            adam_([weight], [gradient * times], [first], [second], [step], **given, gradient_divisor=divisor)
        results.append((weight, first, second, step))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
