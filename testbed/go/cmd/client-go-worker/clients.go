package main

import (
	"context"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const unlimited = 1_000_000

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// client is a client of one cluster.
type client interface {
	apply(ctx context.Context, name, text string) error
	get(ctx context.Context, name string) error
	// informer returns an informer of the Deployments of a namespace, which is not running.
	informer(namespace string) cache.SharedIndexInformer
}

// open returns a client from a kubeconfig.
func open(variant string, task *Task, kubeconfig string) (client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = unlimited, unlimited
	switch variant {
	case "dynamic", "projected":
		set, err := dynamic.NewForConfig(config)
		return &dynamicClient{set, task, transforms[variant]}, err
	case "protobuf":
		config.ContentType = runtime.ContentTypeProtobuf
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
		fallthrough
	case "typed", "stripped", "struct":
		set, err := kubernetes.NewForConfig(config)
		return &typedClient{set, task, transforms[variant]}, err
	}
	return nil, fmt.Errorf("unknown variant %q", variant)
}

// typedClient uses the generated clients, which encode and decode the Go types of the API.
type typedClient struct {
	set       kubernetes.Interface
	task      *Task
	transform cache.TransformFunc
}

func (client *typedClient) apply(ctx context.Context, name, text string) error {
	manifest := corev1.ConfigMap(name, client.task.Namespace).
		WithLabels(client.task.Manifest.Labels).WithData(changed(client.task, text))
	options := metav1.ApplyOptions{FieldManager: client.task.Manager, Force: true}
	_, err := client.set.CoreV1().ConfigMaps(client.task.Namespace).Apply(ctx, manifest, options)
	return err
}

func (client *typedClient) get(ctx context.Context, name string) error {
	_, err := client.set.CoreV1().ConfigMaps(client.task.Namespace).Get(ctx, name, metav1.GetOptions{})
	return err
}

func (client *typedClient) informer(namespace string) cache.SharedIndexInformer {
	factory := informers.NewSharedInformerFactoryWithOptions(
		client.set, 0, informers.WithNamespace(namespace), informers.WithTransform(client.transform))
	return factory.Apps().V1().Deployments().Informer()
}

// dynamicClient uses the dynamic client, which decodes objects of any kind into maps.
type dynamicClient struct {
	set       dynamic.Interface
	task      *Task
	transform cache.TransformFunc
}

func (client *dynamicClient) apply(ctx context.Context, name, text string) error {
	manifest := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1",
		"kind":       "ConfigMap",
		"metadata": map[string]any{
			"name":      name,
			"namespace": client.task.Namespace,
			"labels":    client.task.Manifest.Labels,
		},
		"data": changed(client.task, text),
	}}
	options := metav1.ApplyOptions{FieldManager: client.task.Manager, Force: true}
	_, err := client.configMaps().Apply(ctx, name, manifest, options)
	return err
}

func (client *dynamicClient) get(ctx context.Context, name string) error {
	_, err := client.configMaps().Get(ctx, name, metav1.GetOptions{})
	return err
}

func (client *dynamicClient) configMaps() dynamic.ResourceInterface {
	return client.set.Resource(configMaps).Namespace(client.task.Namespace)
}

func (client *dynamicClient) informer(namespace string) cache.SharedIndexInformer {
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client.set, 0, namespace, nil)
	informer := factory.ForResource(deployments).Informer()
	if client.transform != nil {
		_ = informer.SetTransform(client.transform) // fails only for an informer that runs
	}
	return informer
}

// changed returns the manifest's data with another text.
func changed(task *Task, text string) map[string]string {
	data := maps.Clone(task.Manifest.Data)
	data["text"] = text
	return data
}
