"""Volumes, claims to them and to devices, and attachments."""

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.conditions import words
from governor.kube.readiness.fields import Status, read
from governor.kube.readiness.verdict import Readiness, failed, progressing, ready


class _Phase(Status, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""


class _VolumeSpec(msgspec.Struct, frozen=True, rename="camel"):
    persistent_volume_reclaim_policy: str = "Retain"


class _Volume(msgspec.Struct, frozen=True):
    spec: _VolumeSpec = _VolumeSpec()
    status: _Phase = _Phase()


def persistent_volume_claim(manifest: Object) -> Readiness:
    """Bound, and no change of the volume under way; whether a pending one waits for a pod its class alone knows."""
    status = read(manifest, _Volume).status
    match status.phase:
        case "Bound":
            return _changing(status) or ready("Bound")
        case "Lost":
            return failed("Lost", "its volume is gone, and what was on it")
    return progressing("Pending", "not bound; if its class waits for the first consumer, a pod must use it first")


def _changing(status: Status) -> Readiness | None:
    if refusal := status.holding(("ControllerResizeError", "NodeResizeError", "ModifyVolumeError")):
        return failed(*words(refusal))
    # FileSystemResizePending is no hindrance: it goes on when a pod next mounts the volume.
    change = status.holding(("Resizing", "ModifyingVolume"))
    return progressing(*words(change)) if change else None


def persistent_volume(manifest: Object) -> Readiness:
    """Free or bound; a released one is kept for a person, or on its way to be deleted."""
    it = read(manifest, _Volume)
    match it.status.phase:
        case "Available" | "Bound":
            return ready(it.status.phase)
        case "Released" if it.spec.persistent_volume_reclaim_policy == "Retain":
            return ready("Released", "its claim is gone; what is on it is kept until a person has seen to it")
        case "Failed":
            return failed(it.status.reason or "Failed", it.status.message or "it could not be reclaimed")
    return progressing(it.status.phase or "Pending", it.status.message)


class _VolumeError(msgspec.Struct, frozen=True):
    message: str = ""


class _AttachmentStatus(msgspec.Struct, frozen=True, rename="camel"):
    attached: bool = False
    attach_error: _VolumeError | None = None


class _Attachment(msgspec.Struct, frozen=True):
    status: _AttachmentStatus = _AttachmentStatus()


def volume_attachment(manifest: Object) -> Readiness:
    """Attached; whoever attaches tries again after an error."""
    status = read(manifest, _Attachment).status
    if status.attached:
        return ready("Attached")
    return progressing("Attaching", status.attach_error.message if status.attach_error else "")


class _ClaimStatus(msgspec.Struct, frozen=True):
    allocation: dict[str, object] | None = None


class _ResourceClaim(msgspec.Struct, frozen=True):
    status: _ClaimStatus = _ClaimStatus()


def resource_claim(manifest: Object) -> Readiness:
    """Allocated, which happens when a pod uses it."""
    if read(manifest, _ResourceClaim).status.allocation is not None:
        return ready("Allocated")
    return progressing("NotAllocated", "devices are allocated when a pod that uses it is scheduled")
