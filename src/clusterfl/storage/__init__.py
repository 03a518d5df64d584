"""Files and memory: tables and tensors with manifests, digests, rows on disk, scratch space, locks."""
