"""Changes, the only way in which desired state changes: the steps of the pipeline, one module each."""
