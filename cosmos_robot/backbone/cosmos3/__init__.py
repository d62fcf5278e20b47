"""Cosmos 3: token plan, positions, batched runtime, sampler, text, latents and checkpoints over diffusers' modules."""
