"""The steps of one ModuleInstance, in their order. A step sets no status: it passes the work on, or halts it.

``controllers.module_instances`` runs them and is the one place that turns their result into status, Event and requeue.
"""
