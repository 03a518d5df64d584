"""One federated simulation: the loop over rounds, what a method is, the server, who takes part, the warm-up."""
