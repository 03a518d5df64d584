"""From settings to results: jobs, their stages, what runs and checks them."""
