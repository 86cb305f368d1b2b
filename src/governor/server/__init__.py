"""The governor server: accepts changes of documents, sends compiled deliveries to agents, and stores their reports.

Messages are defined in ``wire``, nouns in ``domain``. How a platform applies a delivery is the agent's concern.
"""
