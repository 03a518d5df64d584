"""Comparison of two finished studies, or of two methods of one: settings, origins, and paired differences."""
