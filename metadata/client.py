"""The client of the metadata quorum: finds the leader, retries what is safe to retry, watches."""

from .interface import Event, MemberStatus, Metadata, RangePage, Watch, WatchBatch, prefix_end

__all__ = ["Event", "MemberStatus", "Metadata", "RangePage", "Watch", "WatchBatch", "prefix_end"]
