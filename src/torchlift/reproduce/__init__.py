"""The numerical section of the paper: every table, figure and claim as an item that can be run again."""

from torchlift.reproduce.item import SCALES, Findings, Item, Scale, Work

ITEMS: dict[str, Item] = {item.name: item for item in ()}
"""By name, in the order of the paper; ours last."""

__all__ = ["ITEMS", "SCALES", "Findings", "Item", "Scale", "Work"]
