"""Cosmos Policy's video model: published names, noise, sampling, text and pictures. The modules are diffusers'."""
