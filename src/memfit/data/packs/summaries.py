"""Packs and what is wrong with them, in a few lines for people."""

from __future__ import annotations

from memfit.data.packs.records import Damage, Feature, Pack, Skipped, Verification
from memfit.units import format_size

_LISTED = 10


def summary_of_pack(pack: Pack) -> str:
    """What is in a pack, and what was left out."""
    features = ", ".join(f"{name} ({_described(feature)})" for name, feature in pack.features.items())
    lines = [
        f"elements  {pack.elements:,}",
        f"features  {features}",
        f"files     {len(pack.shards):,} in {pack.format}, {format_size(pack.size_bytes)}",
    ]
    if pack.class_names is not None:
        lines.append(f"classes   {len(pack.class_names):,}")
    if pack.skipped:
        lines += [f"left out  {len(pack.skipped):,}", *_some([_lost(lost) for lost in pack.skipped])]
    return "\n".join(lines)


def summary_of_verification(found: Verification) -> str:
    """What is there, or each file and record that is damaged."""
    files = f"{found.shards:,} {'file' if found.shards == 1 else 'files'} in {found.format}"
    there = f"{found.path}: {found.elements:,} elements in {files}, {format_size(found.bytes)}"
    if not found.damages:
        return f"{there}: all as it was written."
    return "\n".join([f"{there}: damaged.", *map(_damaged, found.damages)])


def _described(feature: Feature) -> str:
    if feature.dtype is None:
        return feature.kind
    return f"{feature.dtype} {'×'.join(map(str, feature.shape or ()))}".strip()


def _lost(lost: Skipped) -> str:
    return f"  {lost.where}: {lost.reason}"


def _damaged(damage: Damage) -> str:
    record = "" if damage.record is None else f", record {damage.record:,}"
    return f"  {damage.file}{record}: {damage.reason}"


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - _LISTED
    return [*lines[:_LISTED], f"  … and {more:,} more, in the manifest"] if more > 0 else lines
