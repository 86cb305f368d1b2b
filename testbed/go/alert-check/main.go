// Reads a PrometheusRule from standard input as the operator of Prometheus does, and its groups as Prometheus does.
// What is wrong is printed, one error per line.
package main

import (
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/model/rulefmt"
	"sigs.k8s.io/yaml"
)

func main() {
	content, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	found := check(content)
	for _, each := range found {
		fmt.Println(each)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

func check(content []byte) []error {
	var rule monitoring.PrometheusRule
	if err := yaml.UnmarshalStrict(content, &rule); err != nil {
		return []error{err}
	}
	groups, err := yaml.Marshal(rule.Spec)
	if err != nil {
		return []error{err}
	}
	_, errs := rulefmt.Parse(groups, false)
	return errs
}
