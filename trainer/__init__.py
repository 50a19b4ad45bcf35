"""The training engine: TensorFlow, Keras and NumPy, and nothing of pipelines."""
