"""What a recipe will cost, before anything is trained: parameters, operations, memory, time, money."""
