"""The objects of a delivery in the cluster: Dapr resources and Secrets, applied, removed and compared."""
