package schema

import runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

// CRI is the container runtime interface. The numbers of v1alpha2 are those of v1.
func CRI() *Schema {
	return New(runtime.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto, "runtime.v1alpha2")
}
