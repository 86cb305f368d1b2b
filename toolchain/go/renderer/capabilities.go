package main

import (
	"bytes"
	"fmt"
	"sort"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
)

// Reads are the capabilities that a chart has read: only they determine what it renders.
type Reads struct {
	KubeVersion    bool     `json:"kubeVersion"`
	AllAPIVersions bool     `json:"allApiVersions"`
	APIVersions    []string `json:"apiVersions"`
}

// queried collects the API versions that are asked for. One chart is rendered at a time, and a list of versions cannot
// refer to its collector.
var queried map[string]bool

// readsOf returns what a chart has read. Queries for API versions are observed; everything else is found in the texts
// that may be templates: Helm's structs cannot report that a field is read.
func readsOf(chrt *chart.Chart, values []Layer) Reads {
	found := Reads{KubeVersion: chrt.Metadata.KubeVersion != "", APIVersions: []string{}}
	for _, layer := range values {
		found.scan([]byte(layer.Text))
	}
	found.scanChart(chrt)
	for name := range queried {
		found.APIVersions = append(found.APIVersions, name)
	}
	sort.Strings(found.APIVersions)
	return found
}

func (r *Reads) scanChart(chrt *chart.Chart) {
	for _, file := range chrt.Raw {
		r.scan(file.Data)
	}
	for _, dependency := range chrt.Dependencies() {
		r.scanChart(dependency)
	}
}

func (r *Reads) scan(text []byte) {
	count := func(words string) int { return bytes.Count(text, []byte(words)) }
	members := count("Capabilities.KubeVersion") + count("Capabilities.APIVersions") + count("Capabilities.HelmVersion")
	isPassedOn := count("Capabilities") != members
	r.KubeVersion = r.KubeVersion || isPassedOn || count("KubeVersion") > 0
	r.AllAPIVersions = r.AllAPIVersions || isPassedOn || count("APIVersions") != count("APIVersions.Has ")
}

// Capabilities are Helm's, with another type of API versions.
type Capabilities struct {
	KubeVersion chartutil.KubeVersion
	APIVersions Versions
	HelmVersion any
}

// Versions are API versions whose queries are collected.
type Versions chartutil.VersionSet

// Has returns whether an API version, or a kind in it, is known.
func (v Versions) Has(version string) bool {
	queried[version] = true
	return chartutil.VersionSet(v).Has(version)
}

func newCapabilities(kubeVersion string, apiVersions []string) (*chartutil.Capabilities, error) {
	known := chartutil.DefaultCapabilities.Copy()
	if kubeVersion != "" {
		version, err := chartutil.ParseKubeVersion(kubeVersion)
		if err != nil {
			return nil, fmt.Errorf("the version of Kubernetes %q cannot be read: %w", kubeVersion, err)
		}
		known.KubeVersion = *version
	}
	if apiVersions != nil {
		known.APIVersions = apiVersions
	}
	return known, nil
}

// observed returns capabilities that collect the queries from now on.
func observed(known *chartutil.Capabilities) *Capabilities {
	queried = map[string]bool{}
	return &Capabilities{known.KubeVersion, Versions(known.APIVersions), known.HelmVersion}
}

func helmVersion() string { return chartutil.DefaultCapabilities.HelmVersion.Version }
