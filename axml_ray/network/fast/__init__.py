"""The same equations, computed faster."""
