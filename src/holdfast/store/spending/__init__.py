"""Spending: what each agent has used up, a day and in all, counted in the commits that hold the records."""
