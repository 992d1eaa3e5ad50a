"""`saccade reproduce`: train a recorded result again, score it, and compare it with the recorded number.

A result is a table in `recorded/*.toml` (spec.py). Its files are checked by hash (data.py), each seed is trained and
scored once (seeds.py), and the outcome is judged against the recorded mean and spread and written as a card (card.py).
"""
