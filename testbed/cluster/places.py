"""Fixed places of a machine that a node's programs write to."""

PRIVATE = ("/run/containerd", "/run/netns", "/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers")
"""Directories; in the cluster's namespaces each is empty and its own."""
KERNEL_SETTINGS = {
    "kernel/keys/root_maxbytes": 25_000_000,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
}
"""What kubelet would set below /proc/sys for the whole machine, and for good; in the namespaces it finds it set."""
CGROUP = "runtime-governor"
"""All pods of the cluster are below it in each cgroup hierarchy."""
