"""Rows of a history as TensorBoard scalars. Needs the extra `torchlift[tensorboard]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchlift.core.errors import TorchliftError, message

_FIELDS = ("loss", "objective", "gap", "learning_rate")


class TensorBoardWriter:
    """Writes the numbers of rows as scalars such as "train/objective" and "validation/psnr" over steps.

    Arguments:
        folder: for TensorBoard's event files; made if it is missing.
        rows: the rows that a resumed run keeps (its history). Scalars of the
            step of the last one and of later steps are purged, and those of
            kept rows among them written again, so that nothing appears twice.
    """

    def __init__(self, folder: str | Path, rows: Sequence[Mapping[str, Any]] | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            hint = 'Try `pip install "torchlift[tensorboard]"`.'
            raise TorchliftError(message("TensorBoardWriter", "the package tensorboard", str(error), hint)) from error
        purge_step = None if rows is None else rows[-1]["step"] if rows else 0
        self._writer = SummaryWriter(str(folder), purge_step=purge_step)
        for row in rows or ():
            if row["step"] >= purge_step:
                self.write(row)

    def write(self, row: Mapping[str, Any]) -> None:
        """The numbers of one row; what is None is left out."""
        fields = {name: row[name] for name in _FIELDS}
        for name, value in {**fields, **row["metrics"]}.items():
            if value is not None:
                self._writer.add_scalar(f"{row['kind']}/{name}", value, row["step"])

    def sync(self) -> None:
        """Wait until all scalars are in the file."""
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> TensorBoardWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
