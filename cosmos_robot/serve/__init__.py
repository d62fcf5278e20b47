"""Policies over a network: wire format, messages, server, client, and the protocols of other people's clients."""
