"""The types of the scenario's steps."""

from typing import TypeAlias

from demo import steps
from demo.reconciler.world import World

Scenario: TypeAlias = steps.Scenario[World]
Step: TypeAlias = steps.Step[World]
