"""The paper's equations in plain PyTorch."""
