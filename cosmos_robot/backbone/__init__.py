"""Backbones: what diffusers' modules lack to run a robot, one folder per architecture."""
