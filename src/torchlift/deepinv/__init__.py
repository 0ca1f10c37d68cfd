"""Adapters to deepinv, both ways: forward models, networks, priors.

| of deepinv                     | of torchlift                   | by                            |
|--------------------------------|--------------------------------|-------------------------------|
| `physics.LinearPhysics`        | `operators.LinearOperator`     | `from_physics`, `as_physics`  |
| `physics.LinearPhysics`        | `imaging.Task`                 | `PhysicsTask`                 |
| `models.Reconstructor`         | `networks.Network`             | `as_reconstructor`            |
| `optim.Prior`                  | `priors.Prior`, `Regulariser`  | `as_prior`                    |
"""

from torchlift.deepinv.operator import from_physics
from torchlift.deepinv.physics import as_physics
from torchlift.deepinv.prior import as_prior
from torchlift.deepinv.reconstructor import as_reconstructor
from torchlift.deepinv.task import PhysicsTask

__all__ = ["PhysicsTask", "as_physics", "as_prior", "as_reconstructor", "from_physics"]
