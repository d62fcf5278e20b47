"""Between robot units and model tokens."""
