"""Cluster access: kubeconfigs, credentials, exec plugins, and TLS trust."""
