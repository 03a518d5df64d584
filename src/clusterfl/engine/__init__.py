"""Training and scoring of many clients: `engine.Engine` with its settings, `training.Training`.

This file imports nothing: `clusterfl` must choose the kernels (`processor`) before any numerical library is loaded.
"""
