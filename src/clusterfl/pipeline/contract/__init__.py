"""The contract of a part: what the pipeline takes for granted of methods, metrics and so on, as checks of a user's."""
