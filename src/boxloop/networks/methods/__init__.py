"""Methods that turn a trajectory of weights, or a last layer, into a Gaussian distribution: one file each."""
