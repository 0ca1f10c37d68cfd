"""Networks on disk: safetensors for the numbers, JSON for the architecture, nothing evaluated or unpickled."""

from torchlift.models.files import load_model, save_model

__all__ = ["load_model", "save_model"]
