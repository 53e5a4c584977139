"""Rules that a person has stored: what "always" makes of an approval. What a rule says is not for the store to know."""
