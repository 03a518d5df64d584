"""From files to `Samples`: one module for each format; the table `DATASETS` names their functions."""
