package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	kubejson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

const messageBytes = 4096

// Layer is one layer of values.
type Layer struct {
	Text      string `json:"text"`
	Sensitive bool   `json:"sensitive"`
}

// Request is everything that a rendering depends on.
type Request struct {
	Chart       string          `json:"chart"`
	Release     string          `json:"release"`
	Namespace   string          `json:"namespace"`
	IsUpgrade   bool            `json:"isUpgrade"`
	Values      []Layer         `json:"values"`
	KubeVersion string          `json:"kubeVersion"`
	APIVersions []string        `json:"apiVersions"`
	Recording   json.RawMessage `json:"recording"`
	Lookup      bool            `json:"lookup"`
}

// Lookup is one call of the template function `lookup`.
type Lookup struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
}

// Document is one YAML document of a file, as JSON.
type Document struct {
	Source string          `json:"source"`
	Object json.RawMessage `json:"object"`
}

// Hook is a document that is not applied with the others, but at certain events.
type Hook struct {
	Document
	Events         []release.HookEvent        `json:"events"`
	Weight         int                        `json:"weight"`
	DeletePolicies []release.HookDeletePolicy `json:"deletePolicies"`
}

// UnknownHook is a document with an event that Helm does not know; Helm leaves it out.
type UnknownHook struct {
	Source string `json:"source"`
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Events string `json:"events"`
}

// Rendered is the result of a rendering.
type Rendered struct {
	CRDs         []Document    `json:"crds"`
	Objects      []Document    `json:"objects"`
	Hooks        []Hook        `json:"hooks"`
	UnknownHooks []UnknownHook `json:"unknownHooks"`
	Reads        Reads         `json:"reads"`
	Lookups      []Lookup      `json:"lookups"`
	Recording    *Recording    `json:"recording"`
}

// rendering is one rendering in progress.
type rendering struct {
	Request
	recorder *Recorder
	lookUp   func(Lookup) (json.RawMessage, error)
	lookups  []Lookup
	secrets  []string
}

// render renders a chart as `helm install` does, and returns the answer to the parent.
func render(request Request, lookUp func(Lookup) (json.RawMessage, error)) (answer Frame) {
	work := &rendering{Request: request, lookUp: lookUp, lookups: []Lookup{}}
	defer func() {
		if problem := recover(); problem != nil {
			answer = failed("invalid", work.mask(fmt.Sprintf("Helm panicked: %v", problem)))
		}
	}()
	rendered, err := work.run()
	if err != nil {
		return failed("invalid", work.mask(err.Error()))
	}
	return Frame{Type: "rendered", Rendered: rendered}
}

func (w *rendering) run() (*Rendered, error) {
	values, err := w.mergedValues()
	if err != nil {
		return nil, err
	}
	// Loaded again for each rendering: processing the dependencies changes the chart.
	chrt, err := load(w.Chart)
	if err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependenciesWithMerge(chrt, values); err != nil {
		return nil, err
	}
	files, err := w.execute(chrt, values)
	if err != nil {
		return nil, err
	}
	result := &Rendered{Reads: readsOf(chrt, w.Values), Lookups: w.lookups}
	if w.recorder.isUsed() {
		result.Recording = &w.recorder.result
	}
	if result.CRDs, err = definitions(chrt); err != nil {
		return nil, err
	}
	return result, result.sort(files)
}

// mergedValues merges the layers as `helm install -f FILE -f FILE` does.
func (w *rendering) mergedValues() (map[string]any, error) {
	merged := map[string]any{}
	for i, layer := range w.Values {
		values := map[string]any{}
		if err := yaml.Unmarshal([]byte(layer.Text), &values); err != nil {
			return nil, fmt.Errorf("layer %d of the values cannot be read as YAML", i+1)
		}
		if layer.Sensitive {
			w.secrets = append(w.secrets, texts(values)...)
		}
		merged = merge(merged, values)
	}
	return merged, nil
}

func merge(under, over map[string]any) map[string]any {
	merged := make(map[string]any, len(under))
	for key, value := range under {
		merged[key] = value
	}
	for key, value := range over {
		table, isTable := value.(map[string]any)
		known, wasTable := merged[key].(map[string]any)
		if isTable && wasTable {
			merged[key] = merge(known, table)
		} else {
			merged[key] = value
		}
	}
	return merged
}

func load(path string) (*chart.Chart, error) {
	chrt, err := loader.Load(path)
	if err != nil {
		return nil, err
	}
	if kind := chrt.Metadata.Type; kind != "" && kind != "application" {
		return nil, fmt.Errorf("%s charts are not installable", kind)
	}
	missing := []string{}
	for _, required := range chrt.Metadata.Dependencies {
		isNamed := func(each *chart.Chart) bool { return each.Name() == required.Name }
		if !slices.ContainsFunc(chrt.Dependencies(), isNamed) {
			missing = append(missing, required.Name)
		}
	}
	if len(missing) > 0 {
		names := strings.Join(missing, ", ")
		return nil, fmt.Errorf("found in Chart.yaml, but missing in charts/ directory: %s", names)
	}
	return chrt, nil
}

// execute returns the text of each rendered file.
func (w *rendering) execute(chrt *chart.Chart, values map[string]any) (map[string]string, error) {
	capabilities, err := newCapabilities(w.KubeVersion, w.APIVersions)
	if err != nil {
		return nil, err
	}
	options := chartutil.ReleaseOptions{
		Name: w.Release, Namespace: w.Namespace, Revision: 1, IsInstall: !w.IsUpgrade, IsUpgrade: w.IsUpgrade,
	}
	top, err := chartutil.ToRenderValues(chrt, values, options, capabilities)
	if err != nil {
		return nil, err
	}
	wanted, version := chrt.Metadata.KubeVersion, capabilities.KubeVersion.Version
	if wanted != "" && !chartutil.IsCompatibleRange(wanted, version) {
		return nil, fmt.Errorf(
			"chart requires kubeVersion: %s which is incompatible with Kubernetes %s", wanted, version)
	}
	top["Capabilities"] = observed(capabilities)
	var earlier Recording
	if len(w.Recording) > 0 {
		if err := json.Unmarshal(w.Recording, &earlier); err != nil {
			return nil, fmt.Errorf("the recording of an earlier rendering cannot be read")
		}
	}
	w.recorder = newRecorder(earlier, chrt)
	engine.Entered = w.recorder.enter
	functions := w.recorder.functions()
	functions["lookup"] = w.answerLookup
	return engine.Engine{Functions: functions}.Render(chrt, top)
}

func (w *rendering) answerLookup(apiVersion, kind, namespace, name string) (map[string]any, error) {
	wanted := Lookup{apiVersion, kind, namespace, name}
	w.lookups = append(w.lookups, wanted)
	found := map[string]any{}
	if !w.Lookup {
		return found, nil
	}
	text, err := w.lookUp(wanted)
	if err != nil || len(text) == 0 {
		return found, err
	}
	// Unlike encoding/json it reads integers as such: templates print large floating-point numbers with an exponent.
	err = kubejson.Unmarshal(text, &found)
	if kind == "Secret" {
		w.secrets = append(w.secrets, texts(found["data"])...)
	}
	return found, err
}

// mask returns a message without secrets, and without the middle if it is long, as that of a recursion is.
func (w *rendering) mask(message string) string {
	secrets := w.secrets
	if w.recorder != nil {
		secrets = append(secrets, w.recorder.generated()...)
	}
	for _, secret := range secrets {
		message = strings.ReplaceAll(message, secret, "***")
		message = strings.ReplaceAll(message, base64.StdEncoding.EncodeToString([]byte(secret)), "***")
	}
	if len(message) > messageBytes {
		message = message[:messageBytes/2] + " ... " + message[len(message)-messageBytes/2:]
	}
	return strings.ToValidUTF8(message, "")
}

func definitions(chrt *chart.Chart) ([]Document, error) {
	found := []Document{}
	for _, definition := range chrt.CRDObjects() {
		for _, text := range split(string(definition.File.Data)) {
			document, err := newDocument(definition.Filename, text)
			if err != nil {
				return nil, err
			}
			found = append(found, document)
		}
	}
	return found, nil
}

// split returns the documents of a file in their order.
func split(text string) []string {
	byKey := releaseutil.SplitManifests(text)
	keys := []string{}
	for key := range byKey {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if (releaseutil.BySplitManifestsOrder{a, b}).Less(0, 1) {
			return -1
		}
		return 1
	})
	documents := []string{}
	for _, key := range keys {
		documents = append(documents, byKey[key])
	}
	return documents
}

func newDocument(source, text string) (Document, error) {
	object, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return Document{}, fmt.Errorf("YAML parse error on %s: %w", source, err)
	}
	return Document{source, object}, nil
}

// sort adds the documents of the rendered files in the order in which Helm installs them.
func (r *Rendered) sort(files map[string]string) error {
	for name := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			delete(files, name)
		}
	}
	hooks, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return err
	}
	r.Objects, r.Hooks = make([]Document, len(manifests)), make([]Hook, len(hooks))
	for i, manifest := range manifests {
		if r.Objects[i], err = newDocument(manifest.Name, manifest.Content); err != nil {
			return err
		}
	}
	for i, hook := range hooks {
		document, err := newDocument(hook.Path, hook.Manifest)
		if err != nil {
			return err
		}
		r.Hooks[i] = Hook{document, hook.Events, hook.Weight, hook.DeletePolicies}
	}
	r.UnknownHooks = unknownHooks(files, len(hooks)+len(manifests))
	return nil
}

// unknownHooks returns what Helm has left out silently: it keeps every document but hooks with unknown events.
func unknownHooks(files map[string]string, kept int) []UnknownHook {
	documents := map[string][]string{}
	total := 0
	for name, text := range files {
		if strings.TrimSpace(text) != "" {
			documents[name] = split(text)
			total += len(documents[name])
		}
	}
	found := []UnknownHook{}
	if total == kept {
		return found
	}
	for name, texts := range documents {
		for _, text := range texts {
			if hook := unknownHook(name, text); hook != nil {
				found = append(found, *hook)
			}
		}
	}
	slices.SortFunc(found, func(a, b UnknownHook) int { return strings.Compare(a.Source+a.Name, b.Source+b.Name) })
	return found
}

func unknownHook(source, text string) *UnknownHook {
	hooks, manifests, err := releaseutil.SortManifests(map[string]string{source: text}, nil, releaseutil.InstallOrder)
	if err != nil || len(hooks)+len(manifests) > 0 {
		return nil
	}
	var head releaseutil.SimpleHead
	if yaml.Unmarshal([]byte(text), &head) != nil || head.Metadata == nil {
		return nil
	}
	return &UnknownHook{source, head.Kind, head.Metadata.Name, head.Metadata.Annotations[release.HookAnnotation]}
}
