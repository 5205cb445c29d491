"""The paper's analyses of stored episodes: from policies and episodes to tidy tables."""
