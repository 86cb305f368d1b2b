# Every target prepares what it needs; see CONTRIBUTING.md. Set-up itself is tools/bootstrap and tools/setup.py.
# Without byte code each test process would compile and rewrite every module again.
unexport PYTHONDONTWRITEBYTECODE
PYTHON_VENV  := .venv/bin/python
KUBE_SERVERS := etcd kube-apiserver kubectl
KUBE_BENCH_SERVERS := $(KUBE_SERVERS) client-go-worker
PROXY_SERVERS := containerd-2 crictl dockerd
NODE_SERVERS := $(KUBE_SERVERS) kube-controller-manager kube-scheduler kubelet kube-proxy coredns containerd helm
DEMO_SERVERS := daprd redis
SERVERS      := $(DEMO_SERVERS) daprd-1.16 $(NODE_SERVERS) dapr-services dapr-services-1.16 containerd-2 crictl dockerd renderer registry alert-check

.DEFAULT_GOAL := help
.PHONY: help demo demo-kubernetes demo-reconciler test test-unit check check-generated soak bench-change bench-kube bench-kubernetes bench-proxy \
	bench-render bench-reconciler bench-server bench-image image deb manifests testbed-up testbed-down generate lock clean environment servers demo-servers \
	cluster-demo-servers reconciler-demo-servers kube-bench-servers kubernetes-bench-servers proxy-servers render-servers reconciler-bench-servers \
	image-servers node-servers

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: demo-servers ## See a change arrive in real sidecars (KEEP=1 leaves everything running)
	@$(PYTHON_VENV) -m demo

demo-kubernetes: cluster-demo-servers ## See it in a real cluster: server and agents from their charts (KEEP=1 leaves it running); needs root
	@$(PYTHON_VENV) -m demo.cluster

demo-reconciler: reconciler-demo-servers ## See an empty cluster reconcile itself and three modules (KEEP=1 leaves it running); needs root
	@$(PYTHON_VENV) -m demo.reconciler

test: servers ## Run all tests on real servers
	$(PYTHON_VENV) -m pytest -n 3

test-unit: environment ## Run the tests that need no server (PYTHON=python3.13 chooses the interpreter)
	$(PYTHON_VENV) -m pytest -n 2 tests/unit

check: environment check-generated ## Check style, types, import layers and generated files
	$(PYTHON_VENV) -m ruff check
	$(PYTHON_VENV) -m ruff format --check
	$(PYTHON_VENV) -m mypy
	.venv/bin/lint-imports

soak: servers ## Run the long tests, and all properties with many random examples
	$(PYTHON_VENV) -m pytest -m "soak or hypothesis" --hypothesis-profile=soak

bench-change: demo-servers ## Measure the time from an accepted change to its proof
	$(PYTHON_VENV) -m bench.change

bench-kubernetes: kubernetes-bench-servers ## Measure the Kubernetes agent in a real cluster and with a thousand sidecars; needs root
	$(PYTHON_VENV) -m bench.kubernetes

bench-kube: kube-bench-servers ## Compare our Kubernetes client and reflector with client-go and others
	$(PYTHON_VENV) -m bench.kube

bench-proxy: proxy-servers ## Measure the runtime proxy (PEERS="NAME=SOCKET,PID ..." compares others); needs root
	$(PYTHON_VENV) -m bench.proxy $(PEERS)

bench-render: render-servers ## Compare the linked renderer of charts with `helm template`
	$(PYTHON_VENV) -m bench.reconciler.renderers

bench-reconciler: reconciler-bench-servers ## Measure the reconciler with a thousand modules (PEER=KUBECONFIG measures another controller)
	$(PYTHON_VENV) -m bench.reconciler $(if $(PEER),--peer=$(PEER)) $(OPTIONS)

bench-server: environment ## Measure the server with N=10000 agents (OPTIONS=--tls measures with TLS)
	$(PYTHON_VENV) -m bench.server --agents=$(or $(N),10000) $(OPTIONS)

bench-image: image-servers ## Measure the size and the start of the container image; needs root
	$(PYTHON_VENV) -m bench.image

image: image-servers ## Make the container image as an OCI archive (OUTPUT=build/governor.tar)
	@$(PYTHON_VENV) -m deploy.image.assemble --output=$(or $(OUTPUT),build/governor.tar)

deb: environment ## Make the Debian package of the runtime proxy, for the Debian release of this machine (OUTPUT=build)
	@$(PYTHON_VENV) -m deploy.debian.assemble --output=$(or $(OUTPUT),build)

manifests: environment ## Render a chart for kubectl apply (CHART=governor-agent NAMESPACE=runtime-governor VALUES=values.yaml)
	@$(PYTHON_VENV) -m tools.manifests $(or $(CHART),governor-agent) $(if $(NAMESPACE),--namespace=$(NAMESPACE)) \
		$(if $(VALUES),--values=$(VALUES)) --output=$(or $(OUTPUT),build/$(or $(CHART),governor-agent).yaml)

testbed-up: node-servers ## Start a real cluster on this machine (DAPR=1.18.3 installs Dapr too); needs root
	@$(PYTHON_VENV) -m testbed.cluster up $(if $(DAPR),--dapr=$(DAPR))

testbed-down: environment ## Stop that cluster and remove every trace of it
	@$(PYTHON_VENV) -m testbed.cluster down

generate: environment ## Rewrite the generated files
	$(PYTHON_VENV) tools/generate.py

check-generated: environment
	$(PYTHON_VENV) tools/generate.py --check

lock: environment ## Write requirements/*.txt from pyproject.toml
	@$(PYTHON_VENV) -m tools.lock

clean: ## Remove what set-up and tests left in this directory (the per-user cache stays)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -prune -exec rm -rf {} +

environment: ## Make the virtual environment with the locked dependencies
	@tools/bootstrap

servers: ## Download or build every server that the tests need
	@tools/bootstrap $(SERVERS)

demo-servers:
	@tools/bootstrap $(DEMO_SERVERS)

cluster-demo-servers:
	@tools/bootstrap $(NODE_SERVERS) daprd daprd-1.16 dapr-services redis renderer

reconciler-demo-servers:
	@tools/bootstrap $(NODE_SERVERS) redis renderer

kubernetes-bench-servers:
	@tools/bootstrap $(NODE_SERVERS) daprd dapr-services redis

kube-bench-servers:
	@tools/bootstrap $(KUBE_BENCH_SERVERS)

proxy-servers:
	@tools/bootstrap $(PROXY_SERVERS) $(NODE_SERVERS)

image-servers:
	@tools/bootstrap renderer

render-servers:
	@tools/bootstrap helm renderer

reconciler-bench-servers:
	@tools/bootstrap $(KUBE_SERVERS) helm renderer

node-servers:
	@tools/bootstrap $(NODE_SERVERS)
