"""What a study will cost, before it runs."""
