"""From somebody's recordings to a served policy, one stage a command, each with an output folder of its own.

``describe`` makes a contract, ``lint`` and ``stats`` look at the data under it, ``plan`` tells memory and time before
anything is loaded, ``tokenizer`` adapts the autoencoder where asked for, ``overfit`` shows on one episode that
everything fits together, ``train`` trains, ``check`` measures on held-out episodes, ``export`` and ``serve`` bring it
out. See docs/finetune.md.
"""
