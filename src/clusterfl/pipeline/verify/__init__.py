"""Whether a study's results are whole and fit together: `clusterfl verify`."""
