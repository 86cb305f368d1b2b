"""The kinds of the reconciler: one module per kind, each a frozen struct that is also the view of its objects.

The CustomResourceDefinitions beside the modules (``definitions/``) and ``docs/reference/kinds/`` are generated from the
structs (``make generate``): the docstring of a class or field is what ``kubectl explain`` shows. What the objects cause
is decided elsewhere.
"""

from typing import Final

from governor.reconciler.kinds.channel import CHANNEL
from governor.reconciler.kinds.cluster import CLUSTER
from governor.reconciler.kinds.definition import Definition
from governor.reconciler.kinds.installation import INSTALLATION
from governor.reconciler.kinds.module import MODULE
from governor.reconciler.kinds.module_instance import MODULE_INSTANCE

DEFINITIONS: Final[tuple[Definition, ...]] = (CLUSTER, MODULE, CHANNEL, INSTALLATION, MODULE_INSTANCE)
