"""The renderer of charts: a program of ours that is linked with the engine of Helm, in which a few lines are changed.

Helm has no interface for replacing template functions, nor for being told which file is rendered. The changes are made
in a copy of its module: each must match exactly once, so that another version of Helm fails to build instead of
rendering something else.
"""

from pathlib import Path

from toolchain import cache, golang
from toolchain.errors import TestbedError
from toolchain.golang import COMPILER_FLAGS, GO, Build
from toolchain.recipe import Recipe
from toolchain.repository import REPOSITORY
from toolchain.steps import Argv, Steps

HELM_VERSION = "3.17.3"
_MODULE = "helm.sh/helm/v3"
_SOURCE = REPOSITORY / "toolchain" / "go" / "renderer"
_ENGINE = "pkg/engine/engine.go"
_PROGRAM = "governor-renderer"
_REPLACEMENT = f"{_MODULE}=../helm"
"""Relative: the program's build information contains it."""
_MINOR = "32"
"""Minor version of Kubernetes whose API versions this version of Helm assumes by default."""
_STAMPS = (
    (f"{_MODULE}/internal/version.version", f"v{HELM_VERSION}"),
    (f"{_MODULE}/pkg/chartutil.k8sVersionMajor", "1"),
    (f"{_MODULE}/pkg/chartutil.k8sVersionMinor", _MINOR),
)
_FIELD = """
	// Functions replace those of the same names.
	Functions template.FuncMap
}

// Entered is called with the name of each template before it is executed, and its result afterwards.
var Entered = func(name string) func() { return func() {} }
"""
_FUNCTIONS = """
	for name, function := range e.Functions {
		funcMap[name] = function
	}

	t.Funcs(funcMap)
}"""
_INCLUDED = """\
		leave := Entered(name)
		err := t.ExecuteTemplate(&buf, name, data)
		leave()
"""
_RENDERED = """\
		leave := Entered(filename)
		err := t.ExecuteTemplate(&buf, filename, vals)
		leave()
		if err != nil {
"""
_CHANGES = (
    ("\tEnableDNS bool\n}\n", f"\tEnableDNS bool{_FIELD}"),
    ("\n\tt.Funcs(funcMap)\n}", _FUNCTIONS),
    ("\t\terr := t.ExecuteTemplate(&buf, name, data)\n", _INCLUDED),
    ("\t\tif err := t.ExecuteTemplate(&buf, filename, vals); err != nil {\n", _RENDERED),
)


def change(text: str) -> str:
    """Return the source of Helm's engine with our changes."""
    for original, changed in _CHANGES:
        if text.count(original) != 1:
            raise TestbedError(f"{_ENGINE} of Helm {HELM_VERSION} does not contain this exactly once:\n{original}")
        text = text.replace(original, changed)
    return text


def _prepare(scratch: Path, steps: Steps) -> Build:
    """Write the sources of Helm and of the program below a scratch directory."""
    helm, source = scratch / "helm", scratch / _PROGRAM
    golang.copy_module(steps, _MODULE, HELM_VERSION, helm)
    (helm / _ENGINE).write_text(change((helm / _ENGINE).read_text(encoding="utf-8")), encoding="utf-8")
    source.mkdir()
    for file in _files():
        (source / file.name).write_bytes(file.read_bytes())
    argv: Argv = [cache.provide(GO), "mod", "edit", f"-replace={_REPLACEMENT}"]
    steps.run("use the changed engine", argv, cwd=source, environment=golang.environment())
    return Build(source, ["."], _STAMPS, is_edited=True)


def _files() -> list[Path]:
    return [*sorted(_SOURCE.glob("*.go")), _SOURCE / "go.mod", _SOURCE / "go.sum"]


def _build(result: Path, steps: Steps) -> None:
    build = _prepare(result.parent, steps)
    build.compile(result, steps)
    build.vet(steps)


def _fetch(scratch: Path, steps: Steps) -> None:
    _prepare(scratch, steps).fetch(steps)


RENDERER = Recipe(
    *("renderer", HELM_VERSION, _PROGRAM, _build),
    inputs=(
        *(*COMPILER_FLAGS, _REPLACEMENT, *(text for pair in (*_STAMPS, *_CHANGES) for text in pair)),
        *(file.read_text(encoding="utf-8") for file in _files()),
    ),
    packages=("ca-certificates",),
    fetch=_fetch,
)
