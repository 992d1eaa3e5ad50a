"""Commands that list and explain what there is: recipes, their keys, and runs."""
