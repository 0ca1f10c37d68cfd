"""Records as one HTML page that needs nothing else: no network, no server, no other file."""

from torchlift.report.page import html

__all__ = ["html"]
