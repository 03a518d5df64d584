"""A study's settings: their types, how they are read from YAML, checked and described."""
