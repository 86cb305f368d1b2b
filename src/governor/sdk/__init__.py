"""What third parties import: so far the kit for hook plugins of the runtime proxy."""
