"""The change pipeline, the only way in which desired state changes.

``pipeline`` accepts a change: ``submission`` checks the request, ``preparation`` decides it with the steps in
``versions`` (with ``sensitive_values``), ``ownership``, ``catalogue``, ``compiler`` and ``impact``. ``issuer`` turns
the drafts of accepted changes into deliveries, which ``deliveries`` decides; ``redelivery`` issues one again.
"""
