"""Deep Q-learning from pictures: environments, episodes, replay, the writer of action values and its objective."""
