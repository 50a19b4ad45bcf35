"""What happens to data: each file one TFX component or one idea beneath it."""
