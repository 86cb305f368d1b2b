"""Built-in policies: rules in YAML that change pods and containers without a plugin.

Nothing here is imported unless the directory of policies exists: without it the proxy has no policy engine.
"""
