"""An LSTM outside autocast, as on an accelerator: float32 within, the words' format without."""

import torch
from torch import nn

from axml_ray.network.bilstm import lstm_in_float32


def test_an_accelerators_lstm_computes_in_float32_under_autocast_and_returns_the_words_format() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(6, 5, batch_first=True)
    words, state = torch.randn(3, 7, 6).bfloat16(), torch.randn(2, 1, 3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        found = lstm_in_float32(lstm, words, state)
    wanted = lstm(words.float(), (state[0], state[1]))[0]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted.bfloat16(), rtol=0, atol=0)


def test_gradients_too_small_for_float16_come_through() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(6, 5, batch_first=True)
    words, state = torch.randn(3, 7, 6).bfloat16(), torch.zeros(2, 1, 3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        (lstm_in_float32(lstm, words, state).float() * 1e-9).sum().backward()
    assert lstm.weight_ih_l0.dtype == torch.float32
    assert lstm.weight_ih_l0.grad is not None
    assert (lstm.weight_ih_l0.grad != 0).all()
    assert lstm.weight_ih_l0.grad.half().abs().max() < 1e-7
