"""The papers' printed numbers and stated orderings, and what ours are beside them.

Nothing that trains imports this package but for `settings`, which has names only.
"""
