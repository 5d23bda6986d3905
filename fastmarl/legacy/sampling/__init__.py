"""From the runner's episodes to batches."""
