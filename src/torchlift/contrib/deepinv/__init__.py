"""Adapters to deepinv, both ways: forward models, networks, priors.

| of deepinv                     | of torchlift                   | by                            |
|--------------------------------|--------------------------------|-------------------------------|
| `physics.LinearPhysics`        | `operators.LinearOperator`     | `from_physics`, `as_physics`  |
| `physics.LinearPhysics`        | `imaging.Task`                 | `PhysicsTask`                 |
| `models.Reconstructor`         | `networks.Network`             | `as_reconstructor`            |
| `models.Reconstructor`         | `nn.Module` for `train`        | `with_physics`                |
| `optim.Prior`                  | `priors.Prior`, `Regulariser`  | `as_prior`                    |
"""

from torchlift.contrib.deepinv.physics import PhysicsTask, as_physics, from_physics
from torchlift.contrib.deepinv.prior import as_prior
from torchlift.contrib.deepinv.reconstructor import as_reconstructor, with_physics

__all__ = ["PhysicsTask", "as_physics", "as_prior", "as_reconstructor", "from_physics", "with_physics"]
