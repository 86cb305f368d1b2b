"""Readiness of volumes, volume claims, attachments and device claims."""

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.conditions import reason_and_message
from governor.kube.readiness.fields import Status, convert
from governor.kube.readiness.state import Readiness, failed, progressing, ready


class _PhaseStatus(Status, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""


class _VolumeSpec(msgspec.Struct, frozen=True, rename="camel"):
    persistent_volume_reclaim_policy: str = "Retain"


class _Volume(msgspec.Struct, frozen=True):
    spec: _VolumeSpec = _VolumeSpec()
    status: _PhaseStatus = _PhaseStatus()


def persistent_volume_claim(manifest: Object) -> Readiness:
    """Return READY if the claim is bound and its volume is not being changed.

    Whether a pending claim waits for its first consumer depends on its storage class.
    """
    status = convert(manifest, _Volume).status
    match status.phase:
        case "Bound":
            return _volume_change(status) or ready("Bound")
        case "Lost":
            return failed("Lost", "its volume and the data on it are lost")
    return progressing("Pending", "not bound; if its class waits for the first consumer, a pod must use it first")


def _volume_change(status: Status) -> Readiness | None:
    if error := status.first_true(("ControllerResizeError", "NodeResizeError", "ModifyVolumeError")):
        return failed(*reason_and_message(error))
    # FileSystemResizePending does not count: the resize continues when a pod next mounts the volume.
    change = status.first_true(("Resizing", "ModifyingVolume"))
    return progressing(*reason_and_message(change)) if change else None


def persistent_volume(manifest: Object) -> Readiness:
    """Return READY if the volume is available, bound, or released and retained."""
    it = convert(manifest, _Volume)
    match it.status.phase:
        case "Available" | "Bound":
            return ready(it.status.phase)
        case "Released" if it.spec.persistent_volume_reclaim_policy == "Retain":
            return ready("Released", "its claim is deleted; its data is retained until an administrator reclaims it")
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
    """Return READY if the volume is attached; after an error the attacher retries."""
    status = convert(manifest, _Attachment).status
    if status.attached:
        return ready("Attached")
    return progressing("Attaching", status.attach_error.message if status.attach_error else "")


class _ClaimStatus(msgspec.Struct, frozen=True):
    allocation: dict[str, object] | None = None


class _ResourceClaim(msgspec.Struct, frozen=True):
    status: _ClaimStatus = _ClaimStatus()


def resource_claim(manifest: Object) -> Readiness:
    """Return READY if devices are allocated, which happens when a pod uses the claim."""
    if convert(manifest, _ResourceClaim).status.allocation is not None:
        return ready("Allocated")
    return progressing("NotAllocated", "devices are allocated when a pod that uses it is scheduled")
