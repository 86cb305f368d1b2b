"""List and watch one kind, and cache a typed, indexed view of each object."""

from governor.kube.reflector.reflector import Reflector
from governor.kube.reflector.store import Added, Changed, Event, Removed
from governor.kube.reflector.views import Metadata, View

__all__ = ["Added", "Changed", "Event", "Metadata", "Reflector", "Removed", "View"]
