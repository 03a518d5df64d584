"""Training and scoring of many clients: `engine.Engine` with its settings, `training.Training`.

The package itself imports nothing: `clusterfl` chooses the kernels (`processor`) before any library is loaded.
"""
