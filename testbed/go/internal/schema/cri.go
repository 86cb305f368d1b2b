package schema

import runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

// CRI returns the schema of the container runtime interface. v1alpha2 has the field numbers of v1.
func CRI() *Schema {
	return New(runtime.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto, "runtime.v1alpha2")
}
