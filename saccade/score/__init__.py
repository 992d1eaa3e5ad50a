"""Y against references: BLEU, chrF, TER, accuracy, and runs against each other."""
