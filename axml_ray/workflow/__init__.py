"""What a command does, step by step: train, evaluate, compare."""
