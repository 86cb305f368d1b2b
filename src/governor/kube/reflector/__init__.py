"""List and watch one kind, and cache a typed, indexed view of each object."""

from governor.kube.reflector.reflector import Reflector
from governor.kube.reflector.store import Added, Changed, Entry, Event, Removed, Store
from governor.kube.reflector.views import Metadata, Unreadable, View

__all__ = ["Added", "Changed", "Entry", "Event", "Metadata", "Reflector", "Removed", "Store", "Unreadable", "View"]
