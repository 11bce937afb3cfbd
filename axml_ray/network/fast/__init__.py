"""Fused implementations of the equations in `network.paper`."""
