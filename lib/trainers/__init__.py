"""Training: budgets of interaction, advantages, and the trainer on top of TRL's GRPOTrainer."""
