"""Experiment tracking: a run's parameters, metrics and artifacts in TensorBoard, MLflow or Weights & Biases.

Only the process that drives a run logs; workers send records through the run's journals. One module has one tracker,
and `axml_ray.tracking.kinds` lists them.
"""
