"""The admission policy that protects the objects of a module from others. The API server evaluates it: no webhook.

It refuses updates that change spec, data or the owner label, and deletions. Exempt are clients
with the verb ``override`` on the ModuleInstance: the reconciler, and those to which RBAC grants it for an emergency.
"""

from collections.abc import Iterable
from typing import Final

from governor.kube.applyset import IgnoredFields
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.reconciler.kinds.definition import GROUP
from governor.reconciler.kinds.module_instance import MODULE_INSTANCE, ModuleInstance
from governor.reconciler.release.comparison_expressions import exemptions, unchanged

OVERRIDE: Final = "override"
"""The verb of RBAC."""
_API: Final = "admissionregistration.k8s.io"
POLICIES: Final = ApiResource(_API, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", namespaced=False)
BINDINGS: Final = ApiResource(
    _API, "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", namespaced=False
)
RESTARTS: Final = IgnoredFields(
    (
        'spec.template.metadata.annotations["kubectl.kubernetes.io/restartedAt"]',
        'spec.template.metadata.annotations["runtime-governor.dev/restart"]',
    )
)
"""Annotations of kubectl rollout restart, and of the governor's agent."""
_COMPARED: Final = ("spec", "data", "binaryData")
_SYSTEM: Final = (
    '!("system:serviceaccounts:kube-system" in request.userInfo.groups)'
    ' && !request.userInfo.username.startsWith("system:kube-")'
    ' && !request.userInfo.username.startsWith("system:node:")'
    ' && request.userInfo.username != "system:apiserver"'
)


def policy_manifests(
    instance: ModuleInstance,
    owner: str,
    owner_label: str,
    ignored: Iterable[IgnoredFields],
    accounts: Iterable[ObjectRef],
) -> list[Object]:
    """Return the policy of a module and its binding. ``accounts`` are the service accounts that the chart contains."""
    place = f"{instance.metadata.namespace}/{instance.metadata.name}"
    name = f"{owner}.modules.{GROUP}"
    exempt = exemptions((*ignored, RESTARTS))
    same = [unchanged(field, exempt) for field in _COMPARED]
    label = f'metadata[?"labels"][?"{owner_label}"]'
    message = f"managed by ModuleInstance {place}: change Installation {instance.spec.installation} instead"
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["UPDATE", "DELETE"], "resources": ["*"]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "resourceRules": [{**rule, "scope": "*"}],
            "objectSelector": {"matchLabels": {owner_label: owner}},
            "namespaceSelector": {},
        },
        "matchConditions": _conditions(instance, accounts),
        "validations": [
            {"expression": 'request.operation != "DELETE"', "message": f"{message}, or delete that"},
            *(_validation(expression, message) for expression in (*same, f"object.{label} == oldObject.{label}")),
        ],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [_manifest(POLICIES, name, spec), _manifest(BINDINGS, name, binding)]


def _validation(expression: str, message: str) -> Object:
    return {"expression": f'request.operation == "DELETE" || {expression}', "message": message}


def _conditions(instance: ModuleInstance, accounts: Iterable[ObjectRef]) -> list[Object]:
    """Return the conditions under which a request is validated at all; an exempt client cannot be locked out."""
    spec, metadata = instance.spec, instance.metadata
    own = {f"system:serviceaccount:{each.namespace}:{each.name}" for each in accounts}
    if spec.service_account_name:
        own.add(f"system:serviceaccount:{spec.namespace}:{spec.service_account_name}")
    names = ", ".join(f'"{each}"' for each in sorted(own))
    resource = f'authorizer.group("{GROUP}").resource("{MODULE_INSTANCE.plural}").namespace("{metadata.namespace}")'
    return [
        {"name": "not-being-deleted", "expression": "!has(oldObject.metadata.deletionTimestamp)"},
        {"name": "not-a-system-controller", "expression": _SYSTEM},
        {"name": "not-the-module-itself", "expression": f"!(request.userInfo.username in [{names}])"},
        {
            "name": "without-override",
            "expression": f'!{resource}.name("{metadata.name}").check("{OVERRIDE}").allowed()',
        },
    ]


def _manifest(kind: ApiResource, name: str, spec: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
