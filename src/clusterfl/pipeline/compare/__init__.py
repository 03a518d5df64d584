"""Two studies that were run, or two methods of one: what differs in them, and in their numbers, pair by pair."""
