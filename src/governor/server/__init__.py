"""The governor server: documents in through changes, compiled deliveries out through watches, reports back.

What travels is defined in ``wire``, what it means in ``domain``. Nothing here knows how a platform applies a delivery.
"""
