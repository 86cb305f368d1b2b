"""Access to clusters: kubeconfig, in-cluster service account, credentials, exec plugins, TLS contexts."""
