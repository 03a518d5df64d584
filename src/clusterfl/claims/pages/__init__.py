"""The page of the claims, and the papers' figures drawn from our runs."""
