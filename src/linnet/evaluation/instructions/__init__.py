"""Following of instructions: greedy answers to prompts with checkers, what they show, and before against after."""
