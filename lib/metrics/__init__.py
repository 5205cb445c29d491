"""Metrics: Pass@(K,T) from stored success turns, and intervals over the unit that varies (tasks or training seeds)."""
