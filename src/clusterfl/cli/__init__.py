"""The command line: one module for each group of commands. None imports anything heavy before its command runs."""

from .program import main

__all__ = ["main"]
