package main

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// transforms are how variants reduce an object before their informer stores it; without one it is stored whole.
var transforms = map[string]cache.TransformFunc{
	"stripped":  stripManagedFields,
	"projected": project,
	"struct":    summarise,
}

// stripManagedFields removes managedFields from an object.
func stripManagedFields(object any) (any, error) {
	accessor, err := meta.Accessor(object)
	if err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, err
}

// projected are the fields of bench.kube.with_governor.Deployment.
var projected = [][]string{
	{"metadata", "name"},
	{"metadata", "namespace"},
	{"metadata", "uid"},
	{"metadata", "resourceVersion"},
	{"metadata", "generation"},
	{"metadata", "labels"},
	{"spec", "replicas"},
	{"status", "observedGeneration"},
	{"status", "replicas"},
	{"status", "updatedReplicas"},
	{"status", "readyReplicas"},
	{"status", "availableReplicas"},
}

// project returns an unstructured object with only the projected fields.
func project(object any) (any, error) {
	whole, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	small := &unstructured.Unstructured{Object: map[string]any{}}
	for _, path := range projected {
		if value, found, _ := unstructured.NestedFieldNoCopy(whole.Object, path...); found {
			if err := unstructured.SetNestedField(small.Object, value, path...); err != nil {
				return nil, err
			}
		}
	}
	conditions, _, err := unstructured.NestedSlice(whole.Object, "status", "conditions")
	if err != nil {
		return nil, err
	}
	for _, condition := range conditions {
		fields := condition.(map[string]any)
		delete(fields, "lastUpdateTime")
		delete(fields, "lastTransitionTime")
	}
	return small, unstructured.SetNestedSlice(small.Object, conditions, "status", "conditions")
}

// Deployment has the projected fields and nothing else: the smallest that an informer stores.
type Deployment struct {
	metav1.Object     // nil: informers call only the methods below
	name, namespace   string
	uid               types.UID
	resourceVersion   string
	generation        int64
	labels            map[string]string
	specReplicas      int32
	observed          int64
	replicas, updated int32
	ready, available  int32
	conditions        []condition
}

type condition struct{ kind, status, reason, message string }

// GetName returns the name.
func (deployment *Deployment) GetName() string { return deployment.name }

// GetNamespace returns the namespace.
func (deployment *Deployment) GetNamespace() string { return deployment.namespace }

// GetResourceVersion returns the resourceVersion.
func (deployment *Deployment) GetResourceVersion() string { return deployment.resourceVersion }

// summarise returns a hand-written struct with the projected fields.
func summarise(object any) (any, error) {
	whole, ok := object.(*appsv1.Deployment)
	if !ok {
		return nil, fmt.Errorf("%T is no Deployment", object)
	}
	status := &whole.Status
	small := &Deployment{
		name: whole.Name, namespace: whole.Namespace, uid: whole.UID, resourceVersion: whole.ResourceVersion,
		generation: whole.Generation, labels: whole.Labels,
		observed: status.ObservedGeneration, replicas: status.Replicas, updated: status.UpdatedReplicas,
		ready: status.ReadyReplicas, available: status.AvailableReplicas,
		conditions: make([]condition, len(status.Conditions)),
	}
	if whole.Spec.Replicas != nil {
		small.specReplicas = *whole.Spec.Replicas
	}
	for i, each := range status.Conditions {
		small.conditions[i] = condition{string(each.Type), string(each.Status), each.Reason, each.Message}
	}
	return small, nil
}
