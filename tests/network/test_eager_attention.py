"""Both forms of attention against softmax and autograd in float64."""

import pytest
import torch
from torch.testing import assert_close

from axml_ray.network.fast.eager_attention import LARGEST_SCORE, ExponentialAttention, SoftmaxAttention

DOCUMENTS, NODES, WORDS, UNITS = 3, 5, 7, 4


@pytest.mark.parametrize("form", [SoftmaxAttention, ExponentialAttention])
@pytest.mark.parametrize("size", [1.0, LARGEST_SCORE / 3, 400.0, -400.0])
@pytest.mark.parametrize("with_log_sums", [False, True])
def test_equation_2_and_its_gradients(form, size, with_log_sums):
    random = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    # In memory, as the product of a CPU leaves them, words are before nodes. All scores of -400 are far from 0.
    scores = (draw(DOCUMENTS, WORDS, NODES) * abs(size) + min(size, 0.0)).transpose(1, 2)
    values, lengths = draw(DOCUMENTS, WORDS, UNITS).requires_grad_(), torch.tensor([7, 1, 4])
    gradients = draw(DOCUMENTS, NODES, UNITS)
    log_sum_gradients = draw(DOCUMENTS, NODES) if with_log_sums else None

    is_padding = torch.arange(WORDS) >= lengths[:, None, None]
    leaf = scores.clone().requires_grad_()
    masked = leaf.masked_fill(is_padding, -torch.inf)
    contexts, log_sums = masked.softmax(2) @ values, masked.logsumexp(2)
    loss = (contexts * gradients).sum()
    (loss if log_sum_gradients is None else loss + (log_sums * log_sum_gradients).sum()).backward()

    attention = form(scores)
    found, sums, found_log_sums = attention.forward(values.detach(), lengths, with_log_sums)
    constants = log_sum_gradients
    if sums is not None:
        found = found / sums[..., None]
        gradients = gradients / sums[..., None]
        inner = (found * gradients).sum(2)
        constants = -inner if constants is None else constants / sums - inner
    assert_close(found, contexts.detach())
    assert (found_log_sums is None) == (not with_log_sums)
    if with_log_sums:
        assert_close(found_log_sums, log_sums.detach())
    score_gradients, value_gradients = attention.backward(gradients, constants)
    assert_close(score_gradients, leaf.grad)
    assert_close(value_gradients, values.grad)
    # What a CPU computes takes the place of the scores.
    assert (score_gradients.data_ptr() == scores.data_ptr()) == (form is ExponentialAttention)
