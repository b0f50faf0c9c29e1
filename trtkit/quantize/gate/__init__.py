"""The quality gate: what a written checkpoint answers, measured against the model that it was made from."""
