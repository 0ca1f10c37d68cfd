"""Records as one HTML page that needs nothing else: no network, no server, no other file."""

from torchlift.core.signatures import check_calls
from torchlift.report.page import html

__all__ = ["html"]

check_calls(__name__)
