"""The same pipeline on Kubeflow Pipelines."""
