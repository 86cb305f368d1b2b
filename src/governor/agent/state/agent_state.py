"""The agent's state with its types, on any home."""

from typing import Protocol, TypeVar

import msgspec

from governor.agent.state.records import Membership, StoredTrial, Trial, VerifiedDeliveries
from governor.errors import GovernorError, Kind
from governor.wire.deliveries import SignedDelivery

T = TypeVar("T")


class Blobs(Protocol):
    """A home: named values that outlive the process. A value is replaced as a whole, or not at all."""

    def location(self, name: str) -> str:
        """Return where a value is stored, for messages."""

    async def read(self, name: str) -> bytes | None:
        """Return a value, or None if there is none; a damaged value is PRECONDITION."""

    async def write(self, name: str, data: bytes) -> None:
        """Store a value durably."""

    async def remove(self, name: str) -> None:
        """Remove a value durably if there is one."""


class AgentState:
    """The state that every platform needs. What a method has stored survives the process."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def location(self, name: str) -> str:
        """Return where a value is stored, for messages."""
        return self._blobs.location(name)

    async def private_key(self, name: str) -> bytes | None:
        """Return a private key as PEM, or None."""
        return await self._blobs.read(name)

    async def save_private_key(self, name: str, pem: bytes) -> None:
        """Store a private key."""
        await self._blobs.write(name, pem)

    async def remove_private_key(self, name: str) -> None:
        """Remove a private key that is not used any more."""
        await self._blobs.remove(name)

    async def membership(self) -> Membership | None:
        """Return the membership, or None before joining."""
        return await self._read("membership.json", Membership)

    async def save_membership(self, membership: Membership) -> None:
        """Store the membership."""
        await self._write("membership.json", membership)

    async def newest(self) -> SignedDelivery | None:
        """Return the newest delivery received, applied or not."""
        return await self._read("newest.json", SignedDelivery)

    async def save_newest(self, delivery: SignedDelivery) -> None:
        """Store the newest delivery."""
        await self._write("newest.json", delivery)

    async def verified(self) -> VerifiedDeliveries | None:
        """Return the verified deliveries, or None."""
        return await self._read("verified.json", VerifiedDeliveries)

    async def save_verified(self, verified: VerifiedDeliveries | None) -> None:
        """Store the verified deliveries; None removes them."""
        if verified is None:
            await self._blobs.remove("verified.json")
        else:
            await self._write("verified.json", verified)

    async def trials(self) -> dict[str, Trial]:
        """Return the changes that were not verified, by digest, oldest first."""
        stored = await self._read("trials.json", dict[str, StoredTrial]) or {}
        return {digest: each.trial() for digest, each in stored.items()}

    async def save_trials(self, trials: dict[str, Trial]) -> None:
        """Store the changes that were not verified."""
        await self._write("trials.json", trials)

    async def _write(self, name: str, value: object) -> None:
        await self._blobs.write(name, msgspec.json.encode(value))

    async def _read(self, name: str, kind: type[T]) -> T | None:
        data = await self._blobs.read(name)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            where = self.location(name)
            message = f"{where} is not valid state of this agent version; restore it, or remove it to start over"
            raise GovernorError(Kind.PRECONDITION, "state-unreadable", message) from error
