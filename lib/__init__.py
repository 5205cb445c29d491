"""What does multi-turn reinforcement learning really improve in LLM agents? The reference reproduction."""
