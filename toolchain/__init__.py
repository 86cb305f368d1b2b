"""Pinned tools and images: found, downloaded or built once per user. Shared by set-up, test bed, and image."""
