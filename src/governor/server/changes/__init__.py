"""The change pipeline, the only way in which desired state changes.

``pipeline`` runs the steps in order: ``submission`` checks the request, ``versions`` (with ``sensitive_values``) makes
the new document versions, ``ownership`` protects the documents of sources, ``compiler`` builds the bundles, ``impact``
guards large deletions and shows the differences, ``deliveries`` decides what is sent.
"""
