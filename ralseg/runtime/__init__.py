"""What any long run needs, whatever it computes: files, checkpoints, signals, seeds, processes, MLflow.

Nothing here knows images, networks, labels or policies.
"""
