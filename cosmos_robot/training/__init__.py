"""Training: tokenizer, cached datasets, rectified-flow losses and the trainer."""
