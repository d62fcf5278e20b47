"""Vectors as latent frames of a video model: which frame holds what, how a number becomes a frame, and which frames a
mode is given (Cosmos Policy, arXiv 2601.16163, section 4). Written once for every video backbone."""
