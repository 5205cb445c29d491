"""Policies: Hugging Face models that play environments turn by turn, token-in/token-out."""
