"""Files of batches."""
