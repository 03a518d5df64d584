"""How fast and how small clusterfl is, beside a plain PyTorch loop over clients: ``python -m benchmarks``."""
