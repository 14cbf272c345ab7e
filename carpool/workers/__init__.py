"""Worker processes: a model in each, called with batches from the process that started them, and started again."""
